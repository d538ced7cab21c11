"""Curves: the part of a page that shows many sequences, read by `dyneval timescales`.

Each sequence begins at the trained weights, so the gain by position tells how fast is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyneval.page.markup import Markup, data, join, number, pointer, tag
from dyneval.page.sections import figure, settings_of, table
from dyneval.report import unit_per_token

BESIDE = ("buckets", "run")  # keys that are no predictor


def article(name: str, value: Mapping[str, Any], identity: str, several: bool) -> Markup:
    """Return all that there is to see of what `Timescales.to_json` returned."""
    run = value["run"]
    outer, inner = ("h2", "h3") if several else ("h1", "h2")
    sequences = f"{run['sequences']:,} sequences of {run['length']:,} tokens, split {run['split']}"
    unit = unit_per_token(run["vocabulary"]["kind"])
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
        "article",
        tag("p", name, class_="over") if several else None,
        tag(outer, f"{run['model']} reads {run['corpus']}"),
        tag("p", sequences, class_="lead"),
        tag("section", _table(value), class_="summary", aria_label="Summary"),
        tag("section", tag(inner, "By position"), tag("div", *plots, class_="charts")),
        tag("section", tag(inner, "Settings and provenance"), settings_of(run)),
        data(given, class_="payload"),
        id=identity,
        data_name=name,
    )


def title(value: Mapping[str, Any]) -> str:
    """Return what read what."""
    return f"{value['run']['model']} on {value['run']['corpus']} ({value['run']['split']})"


def _predictors(value: Mapping[str, Any]) -> list[str]:
    return [name for name in value if name not in BESIDE]


def _table(value: Mapping[str, Any]) -> Markup:
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
                _band(row["bits_per_token"], (name, part, "bits_per_token"), ".3f"),
                _band(gain, (name, part, "gain"), "+.3f") if gain else None,
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
