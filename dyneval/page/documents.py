"""Documents: the part of a page that shows what each document of a text gained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyneval import spelling, views
from dyneval.page.markup import Markup, join, number, pointer, tag
from dyneval.page.parts import bar_of, table
from dyneval.results import MOST_ROWS, Result


def part(result: Result) -> Markup | None:
    """Return how many documents gained, and a row for each, if the text was read as documents."""
    chosen = views.pair(result)
    if not result.by_document or not chosen:
        return None
    figures = result.to_json()
    found = views.by_document(result, *chosen)
    listed, whole = found, len(found) <= MOST_ROWS  # as in the file
    if not whole:
        ranked = sorted(found, key=lambda row: -(row["gain"] or 0))
        listed = ranked[: MOST_ROWS // 2] + ranked[-MOST_ROWS // 2 :]
    most = max((abs(row["gain"] or 0) for row in listed), default=0)
    heads = ("Document", "Tokens", *(f"{name}, bits/token" for name in chosen), "Gain, %", "")
    lines = [_line(row, chosen, most, whole) for row in listed]
    notes = [_summary(name, figures[name]["documents"]) for name in list(figures)[1:-1]]
    if not whole:
        notes.append(join(f"Of {len(found):,} documents those that gained and lost most."))
    caption = f"What each document gained by {chosen[1]} over {chosen[0]}"
    return join(*(tag("p", note, class_="note") for note in notes), table(heads, lines, caption))


def _summary(name: str, row: Mapping[str, Any]) -> Markup:
    if not row["count"]:
        return join(f"{name}: no document to compare.")
    place = (name, "documents")
    count = number(row["count"], f"{row['count']:,}", pointer(*place, "count"))
    median, share = (
        number(row[key], f"{100 * row[key]:{form}}", pointer(*place, key))
        for key, form in (("median_gain", "+.1f"), ("share_with_gain", ".1f"))
    )
    return join(
        f"{name}: ", count, " documents, median gain ", median, "%, ", share, "% of them gain."
    )


def _line(row: Mapping[str, Any], names: tuple[str, str], most: float, whole: bool) -> Markup:
    place = pointer("documents", str(row["document"] - 1), "tokens") if whole else None
    gain = row["gain"]
    return tag(
        "tr",
        tag("th", tag("bdi", spelling.on_one_line(row["label"])), scope="row"),
        tag("td", number(row["tokens"], f"{row['tokens']:,}", place)),
        *(tag("td", _mean(row[name])) for name in names),
        tag("td", number(gain, f"{100 * (gain or 0):+.1f}")),
        tag("td", bar_of(gain or 0, most), class_="bar"),
    )


def _mean(bits: float | None) -> Markup:
    return number(bits, f"{bits or 0:.3f}")
