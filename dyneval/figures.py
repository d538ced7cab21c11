"""Figures for papers: one column wide, in small serif type, as PNG and as SVG.

They show what the page shows: the mean so far, the cumulative bits, the gain by position, and how
far the weights moved; of an experiment, its gains beside the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dyneval import published, storage, views
from dyneval.published import Line
from dyneval.report import COLOURS, UNITS
from dyneval.results import Result
from dyneval.views import Shown

ENDINGS = (".png", ".svg")
SIZE = (3.4, 2.3)  # inches: one of two columns
STYLE: Any = {
    "font.family": "serif",
    "font.serif": ["STIX Two Text", "STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.1,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "svg.hashsalt": "dyneval",  # the same figure is the same file
    "text.parse_math": False,  # a name may hold a $
}


def draw(result: Shown, folder: Path, prefix: str = "") -> list[Path]:
    """Write each figure of a result or an experiment into a folder, as PNG and SVG -> paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figures: dict[str, Callable[[Any, Any], bool]] = {"gains": _gains}
    if isinstance(result, Result):
        figures = {
            "mean-so-far": _mean,
            "cumulative-bits": _bits,
            "gain-by-position": _position,
            "weights": _weights,
        }
    written = []
    for name, fill in figures.items():
        with mpl.rc_context(STYLE):
            figure, axis = plt.subplots(figsize=SIZE, layout="constrained")
            try:
                if not fill(axis, result):
                    continue
                for ending in ENDINGS:
                    path = folder / f"{prefix}{name}{ending}"
                    about = {"Date": None} if ending == ".svg" else {}
                    with storage.replacing(path) as temporary:
                        figure.savefig(temporary, dpi=300, metadata=about)
                    written.append(path)
            finally:
                plt.close(figure)
    return written


def _lines(axis: Any, result: Result, column: str, skip: int) -> bool:
    """Draw a column of each predictor's points, without the first few."""
    words = result.run["vocabulary"]["kind"] == "words" and column == "mean"
    points = views.cumulative(result)
    for (name, row), colour in zip(points.items(), COLOURS * len(points), strict=False):
        values = [2 ** min(bits, 1000) for bits in row[column]] if words else row[column]
        axis.plot(row["tokens"][skip:], values[skip:], color=colour, label=name)
    axis.set_xlabel("tokens read")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    drawn = any(len(row["tokens"]) > skip for row in points.values())
    if drawn:
        axis.legend(frameon=False)
    return drawn


def _mean(axis: Any, result: Result) -> bool:
    axis.set_ylabel(f"{UNITS[result.run['vocabulary']['kind']][0]} so far")
    # the first tokens say little and would set the scale
    return _lines(axis, result, "mean", 10 if len(result.scored.tokens) > 500 else 0)


def _bits(axis: Any, result: Result) -> bool:
    axis.set_ylabel("bits so far")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    return _lines(axis, result, "bits", 0)


def _position(axis: Any, result: Result) -> bool:
    chosen = views.pair(result)
    rows = views.by_position(result, *chosen) if chosen else []
    if not rows or not chosen:
        return False
    places = [(row["from"] + row["to"]) / 2 for row in rows]
    colour = COLOURS[list(result.scores).index(chosen[1]) % len(COLOURS)]
    low, high = (
        [math.nan if (v := row[end]) is None else v for row in rows] for end in ("low", "high")
    )
    axis.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.plot(places, [row["gain"] for row in rows], color=colour, marker="o", markersize=2)
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_xlabel("tokens read")
    axis.set_ylabel(f"gain of {chosen[1]}, bits/token")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    return True


def _weights(axis: Any, result: Result) -> bool:
    chosen = views.pair(result)
    moved = result.scores[chosen[1]].moved if chosen else {}
    shown = {name: row["relative"] for name, row in moved.items() if row["relative"] is not None}
    if not shown:
        return False
    height = max(SIZE[1], 0.17 * len(shown) + 0.5)
    axis.figure.set_size_inches(SIZE[0], height)
    axis.barh(list(shown), [100 * value for value in shown.values()], color=COLOURS[1], height=0.6)
    axis.invert_yaxis()
    axis.set_xlabel("distance from the trained weights, %")
    return True


def _gains(axis: Any, found: Mapping[str, Any]) -> bool:
    """Draw the paper's gains as rings, and ours as dots with their intervals."""
    shown = _with_gains(published.lines(found))
    if not any(line.ours for line in shown):
        return False
    axis.figure.set_size_inches(2 * SIZE[0], 0.19 * len(shown) + 0.8)
    for ours, colour in ((False, "black"), (True, COLOURS[1])):
        rows = [(k, line.gain) for k, line in enumerate(shown) if line.ours == ours and line.gain]
        if not rows:
            continue
        places, gains = [k for k, _ in rows], [100 * gain["relative"] for _, gain in rows]
        if ours:
            ends = [[100 * gain[end] for _, gain in rows] for end in ("low", "high")]
            axis.hlines(places, *ends, color=colour, linewidth=1.1)
        about = {"markersize": 4, "markerfacecolor": colour if ours else "white"}
        label = "here, with its interval of 95%" if ours else "the paper"
        axis.plot(gains, places, "o", color=colour, label=label, **about)
    axis.set_yticks(range(len(shown)), [line.name for line in shown])
    for label, line in zip(axis.get_yticklabels(), shown, strict=True):
        label.set_color(COLOURS[1] if line.ours else "black")
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.6)
    axis.set_xlabel(f"gain, % of {found['figure']}")
    axis.figure.legend(loc="outside upper right", ncols=2, frameon=False)
    return True


def _with_gains(lines: Iterable[Line]) -> list[Line]:
    """Return the lines with a gain, and the published ones that ours with a gain stand below."""
    shown: list[Line] = []
    above = None
    for line in lines:
        if not line.ours:
            above = line
        elif line.gain and above and above not in shown:
            shown.append(above)
        if line.gain:
            shown.append(line)
    return shown
