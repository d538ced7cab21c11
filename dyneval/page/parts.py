"""Parts: tables, gains, bars, places for figures, and lists of facts, which all sections share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dyneval.page.markup import Markup, join, number, pointer, tag


def table(
    heads: Sequence[object],
    rows: Sequence[Markup],
    caption: str,
    text: int = 1,
    hidden: bool = True,
) -> Markup:
    """Return a table whose first `text` columns are no numbers."""
    cells = [
        tag("th", head, scope="col", class_=None if k < text else "n")
        for k, head in enumerate(heads)
    ]
    inner = (
        tag("caption", caption, class_="hidden" if hidden else None),
        tag("thead", tag("tr", *cells)),
        tag("tbody", *rows),
    )
    return tag(
        "div",
        tag("table", *inner, class_=f"text{text}"),
        class_="wide",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def gain_of(gain: Mapping[str, Any] | None, *place: str) -> Markup | None:
    """Return a gain in percent, with its interval if it has one, by where its row stands."""
    if not gain or gain["relative"] is None:
        return None

    def percent(key: str, form: str) -> Markup:
        # a published gain is derived from two figures of the file
        known = pointer(*place, "gain", key) if "low" in gain else None
        return number(gain[key], f"{100 * gain[key]:{form}}", known)

    shown = join(percent("relative", "+.1f"), "%")
    if "low" not in gain:
        return shown
    interval = join(" [", percent("low", ".1f"), ", ", percent("high", ".1f"), "]")
    return join(shown, tag("small", interval))


def bar_of(value: float, most: float) -> Markup:
    """Return a bar as long as a value is large, next to the largest; a loss has another colour."""
    length = f"{100 * abs(value) / most if most else 0:.1f}%"
    bar = tag("rect", width=length, height="100%", rx=2, class_="loss" if value < 0 else None)
    return tag("svg", bar, class_="meter", aria_hidden="true")


def figure(name: str, caption: str, whole: bool = False) -> Markup:
    """Return a place where the script draws, in half of the width or the whole."""
    inner = tag("figcaption", caption), tag("div", class_="plot")
    return tag("figure", *inner, data_chart=name, class_="chart whole" if whole else "chart")


def facts_of(run: Mapping[str, Any]) -> Markup:
    """Return everything else that the file says of the run."""
    rules = [
        tag("div", tag("dt", name), tag("dd", tag("code", rule)))
        for name, rule in run["rule"].items()
    ]
    rows = [
        tag("div", tag("dt", key), tag("dd", value))
        for key, value in _flat(run)
        if not key.startswith("rule")
    ]
    return join(
        tag("dl", *rules, class_="facts rules") if rules else None,
        tag(
            "details",
            tag("summary", "Everything that the result depends on"),
            tag("dl", *rows, class_="facts"),
        ),
    )


def _flat(value: Mapping[str, Any], start: str = "") -> list[tuple[str, str]]:
    """Return the values of nested objects, each with its path."""
    found = []
    for key, inner in value.items():
        name = f"{start}{key}".replace("_", " ")
        if isinstance(inner, Mapping):
            found += _flat(inner, f"{start}{key}, ")
        elif inner is not None and inner != "":
            found.append((name, f"{inner:,}" if isinstance(inner, int) else str(inner)))
    return found
