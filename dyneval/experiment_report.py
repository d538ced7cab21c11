"""What an experiment found beside what the paper has: in the terminal, and as Markdown.

A gain is by what part a figure is lower than that of the same model without learning; ours has
its interval of 95%, from differences that are paired token by token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dyneval import published, spelling

COLUMNS = ("", "valid", "test", "gain")
OURS = "↳ "
BUCKETS = 10  # of a curve that are shown


def rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each published row, and below it of each study that answers it."""
    for line in published.lines(found):
        name = OURS + line.name if line.ours else line.name
        if line.figures:
            figures = (_number(line.figures[split], line.digits) for split in ("valid", "test"))
            yield name, *figures, "diverged" if "diverged" in line.figures else _gain(line.gain)
        else:
            yield name, "", "", ""


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _gain(gain: Mapping[str, Any] | None) -> str:
    if not gain:
        return "–"
    interval = f" ({100 * gain['low']:.1f}..{100 * gain['high']:.1f})" if "low" in gain else ""
    return f"{gain['relative']:.1%}{interval}"


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
    """Return the file of a curve's figure, beside another that it is named after."""
    own = re.sub(r"\W+", "-", curve.lower())
    return path.with_name(f"{path.stem}-{own}{path.suffix}")


def markdown(found: Mapping[str, Any]) -> str:
    """Return the tables of an experiment as Markdown."""
    lines, facts = [], published.facts(found)
    if cells := list(rows(found)):
        lines += _markdown_table(COLUMNS, cells)
    lines += [f"- The paper, {name}: {fact}." for name, fact in facts.items()]
    for name, curve in found["curves"].items():
        lines += ["", f"{name}, {curve['run']['sequences']} sequences, bits per token:", ""]
        lines += _markdown_table(CURVE_COLUMNS, curve_rows(curve))
        file = figure_of(Path("results", f"{found['experiment']}.png"), name).as_posix()
        lines += ["", f"![Loss and gain by position, {name}]({file})"]
    for name, sample in found["samples"].items():
        lines += ["", f"{name}:", ""]
        for predictor, written in sample.items():
            share = written.get("share")
            known = f" ({share:.0%} of its words are in the text)" if share is not None else ""
            text = " ".join(written["samples"][0]["text"].split())
            lines.append(f"- {predictor}{known}: `{text.replace('`', chr(39))}`")
    if facts and not (found["curves"] or found["samples"]):
        lines += ["", f"Ours: {published.NOT_RUN}."]
    return "\n".join(lines)


def _markdown_table(columns: tuple[str, ...], cells: Iterable[tuple[str, ...]]) -> list[str]:
    head = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return head + ["| " + " | ".join(row) + " |" for row in cells]


def show(found: Mapping[str, Any]) -> None:
    """Print the tables."""
    console = Console()
    if found["studies"]:
        console.print(_table(published.heading(found), COLUMNS, rows(found)))
    for name, curve in found["curves"].items():
        console.print(_table(f"{name}, bits per token", CURVE_COLUMNS, curve_rows(curve)))
    for name, sample in found["samples"].items():
        for predictor, written in sample.items():
            console.print(Text(f"{name}, {predictor}:", style="bold"))
            for each in written["samples"]:
                console.print(Text(spelling.visible(each["text"])))


def _table(title: str, columns: tuple[str, ...], cells: Iterable[tuple[str, ...]]) -> Table:
    grid = Table(title=Text(title), title_justify="left")
    for k, column in enumerate(columns):
        grid.add_column(column, justify="right" if k else "left")
    for row in cells:
        grid.add_row(*map(Text, row))
    return grid
