"""What reading many sequences showed: a table in the terminal, the rows of a file, a figure.

All three are made of what `Timescales.to_json` returned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dyneval import storage
from dyneval.report import COLOURS, ENDINGS, UNITS, unit_per_token


def table(value: dict[str, Any]) -> Group:
    """Return a table of the predictors side by side, an interval behind each figure."""
    run, kind = value["run"], value["run"]["vocabulary"]["kind"]
    rows = _predictors(value)
    count, length = f"{run['sequences']:,}", f"{run['length']:,}"
    title = (
        f"{run['model']} on {run['corpus']} ({run['split']}), {count} sequences of {length} tokens"
    )
    grid = Table(title=Text(title), title_justify="left")
    grid.add_column("")
    for name in rows:
        grid.add_column(Text(name), justify="right")
    for part in ("all", "last"):
        span = next(iter(rows.values()))[part]
        if part == "last" and span["from"] == 1:  # all over again
            continue
        where = "" if part == "all" else f", last {span['to'] - span['from'] + 1:,}"
        grid.add_row(
            unit_per_token(kind) + where,
            *(_loss(row[part]["bits_per_token"], kind) for row in rows.values()),
        )
        grid.add_row(
            "  " + _gain_unit(kind),
            *(_interval(row[part]["gain"]) if "gain" in row[part] else "" for row in rows.values()),
        )
    if any("break_even" in row for row in rows.values()):
        grid.add_row("gain so far is positive", *(_break_even(row) for row in rows.values()))
    lines = [Text(f"{name}: {rule}", style="dim") for name, rule in run["rule"].items()]
    lines.append(Text("in brackets: 95% of the means of resampled sequences", style="dim"))
    if run["note"]:
        lines.append(Text(f"{run['corpus']}: {run['note']}", style="dim"))
    return Group(grid, *lines)


def _predictors(value: dict[str, Any]) -> dict[str, Any]:
    return {name: row for name, row in value.items() if name not in ("buckets", "run")}


def _quoted(bits: float, kind: str) -> float:
    """Return bits per token as the figure people quote."""
    return 2 ** min(bits, 1000) if kind == "words" else bits


def _gain_unit(kind: str) -> str:
    return "gain, bits/token" if kind == "words" else f"gain, {unit_per_token(kind)}"


def _loss(bits: dict[str, float], kind: str) -> str:
    digits = UNITS[kind][1] - (kind != "words")
    return _interval({key: _quoted(value, kind) for key, value in bits.items()}, digits)


def _interval(band: dict[str, float], digits: int = 3) -> str:
    return f"{band['mean']:,.{digits}f} [{band['low']:,.{digits}f}, {band['high']:,.{digits}f}]"


def _break_even(row: dict[str, Any]) -> str:
    if "break_even" not in row:
        return ""
    found = {key: "never" if k is None else f"{k:,}" for key, k in row["break_even"].items()}
    return f"after {found['tokens']} tokens [{found['low']}, {found['high']}]"


def show(value: dict[str, Any]) -> None:
    """Print the table."""
    Console().print(table(value))


def write_csv(value: dict[str, Any], path: Path) -> None:
    """Write a row for each bucket: its positions, losses and gains in bits per token."""
    storage.check_writable(path, storage.CSV_ENDINGS)
    storage.write_rows(path, value["buckets"])


def figure(value: dict[str, Any], path: Path) -> None:
    """Draw the loss by position, and below it the gain over the first predictor, with bands."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    storage.check_writable(path, ENDINGS)
    run, kind = value["run"], value["run"]["vocabulary"]["kind"]
    names = list(_predictors(value))
    fig, (upper, lower) = plt.subplots(
        2, 1, figsize=(7, 5.6), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    for name, colour in zip(names, COLOURS * len(names), strict=False):
        _draw(upper, value["buckets"], f"{name}.bits_per_token", kind, colour, name)
        if name != names[0]:
            _draw(lower, value["buckets"], f"{name}.gain", "", colour, name)
        tokens = value[name].get("break_even", {}).get("tokens")
        if tokens:
            lower.axvline(tokens, color=colour, linewidth=0.8, linestyle=":")
    unit = unit_per_token(kind)
    upper.set_ylabel(unit)
    lower.set_ylabel(_gain_unit(kind))
    lower.set_xlabel(f"{kind} read" if kind != "words" else "tokens read")
    lower.axhline(0, color="black", linewidth=0.8)
    band = f"mean and 95% band of {run['sequences']:,} sequences"
    title = f"{run['model']} on {run['corpus']}, {band}"
    upper.set_title(title, loc="left", fontsize=11, parse_math=False)  # a name may hold a $
    upper.legend(frameon=False)
    for axis in (upper, lower):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    lower.xaxis.set_major_formatter("{x:,.0f}")
    lower.set_xlim(0, value["buckets"][-1]["to"])
    try:
        with storage.replacing(path) as temporary:
            fig.savefig(temporary, dpi=160)
    finally:
        plt.close(fig)


def _draw(
    axis: Any, buckets: list[dict[str, float]], key: str, kind: str, colour: str, label: str
) -> None:
    """Draw a line through the buckets' middles, and its band."""
    places = [(row["from"] + row["to"]) / 2 for row in buckets]
    mean, low, high = (
        [_quoted(row[f"{key}.{end}"], kind) for row in buckets] for end in ("mean", "low", "high")
    )
    axis.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.plot(places, mean, color=colour, label=label, linewidth=1.4)
