"""Reports: what a result says, as a table in the terminal and as a figure in a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dyneval import storage
from dyneval.results import QUOTED, UNITS_OF, Result

UNITS = {  # of a vocabulary: the name of the figure people quote, its decimals
    "words": ("perplexity", 2),
    "characters": ("bits/character", 4),
    "bytes": ("bits/byte", 4),
    "tokens": ("bits/byte", 4),
}
ENDINGS = (".png", ".svg", ".pdf")
COLOURS = ("#888888", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def running(nats: float, kind: str) -> str:
    """Return mean nats per token as the figure people quote."""
    if kind == "words":
        return f"perplexity {_number(math.exp(min(nats, 50)), 2)}"
    return f"{nats / math.log(2):.3f} bits/{kind[:-1]}"


def unit_per_token(kind: str) -> str:
    """Return the unit of means per token that are quoted as they are: bits, or a perplexity."""
    return "bits/token" if kind == "tokens" else UNITS[kind][0]


def table(result: Result) -> Group:
    """Return a table of the predictors side by side, with what each gains over the first."""
    run = result.run
    key = QUOTED[run["vocabulary"]["kind"]]
    name, digits = UNITS[run["vocabulary"]["kind"]]
    title = Text(f"{run['model']} on {run['corpus']} ({run['split']})")  # its [] are no markup
    grid = Table(title=title, title_justify="left")
    for column in ("", "tokens", name, "bits/token", "gain", "tokens/s"):
        grid.add_column(column, justify="left" if not column else "right")
    rows = result.to_json()
    first: dict[str, Any] = {}
    for predictor, row in rows.items():
        if predictor == "run":
            continue
        first = first or row
        same = row["tokens"] == first["tokens"]
        gain = _gain(row[key], first[key]) if same and row is not first else ""
        gain += _interval(row["gain"]) if "gain" in row else ""
        pace = row["tokens"] / row["seconds"] if row["seconds"] else 0
        cells = (_number(row[key], digits), _number(row["bits_per_token"], 4), gain)
        grid.add_row(predictor, f"{row['tokens']:,}", *cells, f"{pace:,.0f}")
    lines = [Text(f"{name}: {rule}", style="dim") for name, rule in run["rule"].items()]
    if result.gains:
        over = next(iter(result.scores))
        lines.append(Text(f"gain: over {over}, with its interval of 95%", style="dim"))
    lines += [
        Text(f"{name}: {_documents(row['documents'])}", style="dim")
        for name, row in rows.items()
        if "documents" in row and name != "run"
    ]
    engines = run["engines"]
    same = len(set(engines.values())) == 1
    for name, engine in list(engines.items())[: 1 if same else None]:
        lines.append(Text(f"engine{'' if same else f' of {name}'}: {engine}", style="dim"))
    if run["note"]:
        lines.append(Text(f"{run['corpus']}: {run['note']}", style="dim"))
    return Group(grid, *lines)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _gain(value: float | None, first: float | None) -> str:
    """Return by how much a figure is lower than the first one."""
    return "" if not value or not first else f"{(first - value) / first:+.1%}"


def _interval(gain: dict[str, Any]) -> str:
    """Return the interval of a relative gain, in percent."""
    if gain["low"] is None:
        return ""
    return f" ({100 * gain['low']:.1f}..{100 * gain['high']:.1f})"


def _documents(row: dict[str, Any]) -> str:
    """Return how documents gain, in a line."""
    if not row["count"]:
        return "no document to compare"
    median, share = row["median_gain"], row["share_with_gain"]
    return f"{row['count']:,} documents, median gain {median:+.1%}, {share:.1%} of them gain"


def pairs(compared: list[dict[str, Any]], files: list[str]) -> Group:
    """Return a table of what `results.compare` found, a row each, and the files below it."""
    gain = compared[0]["gain"]
    grid = Table(title=Text(gain["figure"].replace("_", " ")), title_justify="left")
    for column in ("", "A", "B", f"gain ({100 * gain['level']:.4g}%)", "significant"):
        grid.add_column(column, justify="right" if column else "left")
    digits = 2 if "perplexity" in gain["figure"] else 4
    for pair in compared:
        gain = pair["gain"]
        name = pair["a"] if pair["a"] == pair["b"] else f"{pair['b']} over {pair['a']}"
        relative = "–" if gain["relative"] is None else f"{gain['relative']:+.1%}"
        clear = f"{'yes' if gain['significant'] else 'no'}, p {gain['p_value']:.3f}"
        first, second = (_number(value, digits) for value in pair["figures"])
        grid.add_row(Text(name), first, second, relative + _interval(gain), clear)
    same = len(set(files)) == 1
    lines = [
        Text(f"{letter}: {file}", style="dim") for letter, file in zip("AB", files, strict=True)
    ]
    lines = [Text(f"A, B: {files[0]}", style="dim")] if same else lines
    if "carry" in compared[0]:
        carry = "{} in A, {} in B".format(*compared[0]["carry"])
        lines.append(Text(f"what documents carry over: {carry}", style="dim"))
    return Group(grid, *lines)


def show(result: Result) -> None:
    """Print the table."""
    Console().print(table(result))


def figure(result: Result, path: Path | str) -> None:
    """Draw each predictor's mean so far, over the text, into a PNG, SVG or PDF file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    path = Path(path)
    storage.check_writable(path, ENDINGS)
    kind = result.run["vocabulary"]["kind"]
    unit = UNITS_OF[kind]
    scored = result.scored
    sizes = np.ones(len(scored.tokens)) if unit is None else getattr(scored, unit)
    fig, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    # the first few tokens say little and would set the scale
    skip = min(len(sizes) // 50, 1000)
    for colour, (name, score) in zip(COLOURS * 2, result.scores.items(), strict=False):
        count = len(score.nats)
        if count <= skip:
            continue
        so_far = np.cumsum(score.nats) / np.maximum(1, np.cumsum(sizes[:count]))
        figure_ = np.exp(so_far) if unit is None else so_far / math.log(2)
        points = np.unique(np.linspace(skip, count - 1, 2000).astype(int))
        axis.plot(points + 1, figure_[points], color=colour, label=name, linewidth=1.6)
    axis.set_xlabel(f"{kind} read" if unit else "tokens read")
    axis.set_ylabel(f"{UNITS[kind][0]} so far")
    title = f"{result.run['model']} on {result.run['corpus']}"
    axis.set_title(title, loc="left", fontsize=11, parse_math=False)  # a name may hold a $
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25)
    if axis.lines:  # none where all diverged at once
        axis.legend(frameon=False)
    try:
        with storage.replacing(path) as temporary:
            fig.savefig(temporary, dpi=160)
    finally:
        plt.close(fig)
