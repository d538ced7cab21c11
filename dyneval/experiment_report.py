"""What an experiment found beside what the paper has: in the terminal, and as Markdown.

A gain is by what part a figure is lower than that of the same model without learning; ours has
its interval of 95%, from differences that are paired token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dyneval.experiments import Experiment

COLUMNS = ("", "valid", "test", "gain")
OURS = "↳ "
BUCKETS = 10  # of a curve that are shown
NOT_RUN = "not run"


def rows(experiment: Experiment, found: Mapping[str, Any] | None) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each published row, and below it of each study that answers it."""
    digits = 1 if "perplexity" in experiment.figure else 2  # of the paper's
    tests = {row.name: row.test for row in experiment.published}
    for row in experiment.published:
        if row.fact:
            continue
        # "LSTM + dynamic eval" is the model of the row "LSTM"
        base = tests.get(row.name.partition(" + ")[0]) if row.role and " + " in row.name else None
        gain = f"{1 - row.test / base:.1%}" if base and row.test else "–"
        yield row.name, _number(row.valid, digits), _number(row.test, digits), gain
        answers = [
            (study["name"], study["rows"][row.row])
            for study in (found or {"studies": []})["studies"]
            if study["role"] == row.role and row.row in study["rows"]
        ]
        for name, ours in answers:
            figures = (_number(ours[split], digits + 1) for split in ("valid", "test"))
            yield OURS + name, *figures, "diverged" if "diverged" in ours else _gain(ours)
        if row.role and not answers:
            yield OURS + NOT_RUN, "", "", ""


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _gain(row: Mapping[str, Any]) -> str:
    gain = row.get("gain")
    if not gain or gain["relative"] is None:
        return "–"
    return f"{gain['relative']:.1%} ({100 * gain['low']:.1f}..{100 * gain['high']:.1f})"


def curve_rows(curve: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of some buckets of a curve: positions, losses, and the gain."""
    buckets = curve["buckets"]
    step = max(1, len(buckets) // BUCKETS)
    for bucket in buckets[::step]:
        losses = (f"{bucket[f'{name}.bits_per_token.mean']:.3f}" for name in ("static", "dynamic"))
        gain, low, high = (bucket[f"dynamic.gain.{key}"] for key in ("mean", "low", "high"))
        places = f"{bucket['from']}–{bucket['to']}"
        yield places, *losses, f"{gain:.3f} ({low:.3f}..{high:.3f})"


CURVE_COLUMNS = ("positions", "static", "dynamic", "gain in bits")


def figure_of(path: Path, curve: str) -> Path:
    """Return the file of a curve's figure, beside that of the result."""
    return path.with_name(f"{path.stem}-{curve.lower().replace(' ', '-')}.png")


def markdown(experiment: Experiment, found: Mapping[str, Any] | None) -> str:
    """Return the tables of an experiment as Markdown."""
    lines = []
    if any(not row.fact for row in experiment.published):
        lines += _markdown_table(COLUMNS, rows(experiment, found))
    lines += [f"- The paper, {row.name}: {row.fact}." for row in experiment.published if row.fact]
    found = found or {"curves": {}, "samples": {}}
    for name, curve in found["curves"].items():
        lines += ["", f"{name}, {curve['run']['sequences']} sequences, bits per token:", ""]
        lines += _markdown_table(CURVE_COLUMNS, curve_rows(curve))
        file = figure_of(Path("results", experiment.name), name).as_posix()
        lines += ["", f"![Loss and gain by position, {name}]({file})"]
    for name, sample in found["samples"].items():
        lines += ["", f"{name}:", ""]
        for predictor, written in sample.items():
            share = written.get("share")
            known = f" ({share:.0%} of its words are in the text)" if share is not None else ""
            text = " ".join(written["samples"][0]["text"].split())
            lines.append(f"- {predictor}{known}: `{text.replace('`', chr(39))}`")
    if not lines or (
        experiment.published[0].fact and not any((*found["curves"], *found["samples"]))
    ):
        lines += ["", f"Ours: {NOT_RUN}."]
    return "\n".join(lines)


def _markdown_table(columns: tuple[str, ...], cells: Iterator[tuple[str, ...]]) -> list[str]:
    head = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return head + ["| " + " | ".join(row) + " |" for row in cells]


def show(experiment: Experiment, found: Mapping[str, Any]) -> None:
    """Print the tables."""
    console = Console()
    if found["studies"]:
        title = f"{experiment.title} ({experiment.figure})"
        console.print(_table(title, COLUMNS, rows(experiment, found)))
    for name, curve in found["curves"].items():
        console.print(_table(f"{name}, bits per token", CURVE_COLUMNS, curve_rows(curve)))
    for name, sample in found["samples"].items():
        for predictor, written in sample.items():
            console.print(Text(f"{name}, {predictor}:", style="bold"))
            for each in written["samples"]:
                console.print(Text(each["text"]))


def _table(title: str, columns: tuple[str, ...], cells: Iterator[tuple[str, ...]]) -> Table:
    grid = Table(title=Text(title), title_justify="left")
    for k, column in enumerate(columns):
        grid.add_column(column, justify="right" if k else "left")
    for row in cells:
        grid.add_row(*map(Text, row))
    return grid
