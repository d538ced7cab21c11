"""Curves: the part of a page that shows many sequences, read by `dyneval timescales`.

Each sequence begins at the trained weights, so the gain by position tells how fast is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyneval.page.markup import Markup, data, join, number, pointer, tag
from dyneval.page.parts import facts_of, figure, table
from dyneval.report import unit_per_token

BESIDE = ("buckets", "run")  # keys that are no predictor


def article(name: str, value: Mapping[str, Any], identity: str, several: bool) -> Markup:
    """Return all that there is to see of what `Timescales.to_json` returned."""
    run = value["run"]
    return tag(
        "article",
        tag("p", name, class_="over") if several else None,
        tag("h2" if several else "h1", f"{run['model']} reads {run['corpus']}"),
        tag("section", body(value), class_="summary", aria_label="Loss and gain by position"),
        id=identity,
        data_name=name,
    )


def body(value: Mapping[str, Any], place: tuple[str, ...] = ()) -> Markup:
    """Return the table, the figures and the settings of what stands at a place in a file."""
    run = value["run"]
    unit = unit_per_token(run["vocabulary"]["kind"])
    count, length = f"{run['sequences']:,}", f"{run['length']:,}"
    read = f"{run['model']} reads {count} sequences of {length} tokens, {run['corpus']}"
    plots = (
        figure("loss", f"Loss by position, {unit}, with its band of 95%", True),
        figure("gain", "Gain by position, bits/token, with its band of 95%", True),
    )
    given = {
        "kind": run["vocabulary"]["kind"],
        "figure": unit,
        "predictors": _predictors(value),
        "buckets": value["buckets"],
    }
    return tag(
        "div",
        tag("p", f"{read} ({run['split']})", class_="lead"),
        _table(value, place),
        tag("div", *plots, class_="charts"),
        facts_of(run),
        data(given, class_="payload"),
    )


def title(value: Mapping[str, Any]) -> str:
    """Return what read what."""
    return f"{value['run']['model']} on {value['run']['corpus']} ({value['run']['split']})"


def _predictors(value: Mapping[str, Any]) -> list[str]:
    return [name for name in value if name not in BESIDE]


def _table(value: Mapping[str, Any], place: tuple[str, ...]) -> Markup:
    """Return the mean losses and gains, over all positions and over the last ones."""
    names, lines = _predictors(value), []
    for part in ("all", "last"):
        span = value[names[0]][part]
        if part == "last" and span["from"] == 1:  # all over again
            continue
        where = f"{span['from']:,} to {span['to']:,}"
        for name in names:
            row = value[name][part]
            gain = row.get("gain")
            cells = (
                name,
                where,
                _band(row["bits_per_token"], (*place, name, part, "bits_per_token"), ".3f"),
                _band(gain, (*place, name, part, "gain"), "+.3f") if gain else None,
            )
            lines.append(
                tag("tr", tag("th", cells[0], scope="row"), *(tag("td", c) for c in cells[1:]))
            )
    heads = ("Predictor", "Positions", "Bits/token (95%)", "Gain, bits/token (95%)")
    return table(heads, lines, "Losses and gains", 2)


def _band(band: Mapping[str, float], place: tuple[str, ...], form: str) -> Markup:
    mean, low, high = (
        number(band[key], f"{band[key]:{form if key == 'mean' else '.3f'}}", pointer(*place, key))
        for key in ("mean", "low", "high")
    )
    return join(mean, tag("small", join("[", low, ", ", high, "]")))
