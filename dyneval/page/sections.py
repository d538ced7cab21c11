"""Sections: the parts of a page that stand without a script, as tables that can be read aloud.

Every number that is in the result's file carries its place there, and its value in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dyneval import published, spelling, views
from dyneval.page import documents
from dyneval.page.markup import Markup, data, join, number, pointer, tag
from dyneval.page.parts import bar_of, facts_of, figure, gain_of, table
from dyneval.page.payload import payload
from dyneval.published import Other
from dyneval.report import UNITS
from dyneval.results import QUOTED, Result
from dyneval.views import Recurring

SHOWN = 12  # words and patterns in a table


def title(result: Result) -> str:
    """Return what read what."""
    run = result.run
    return f"{run['model']} on {run['corpus']} ({run['split']})"


def article(name: str, result: Result, identity: str, several: bool) -> Markup:
    """Return all that there is to see of one result."""
    outer, inner = ("h2", "h3") if several else ("h1", "h2")
    known = result.vocabulary
    cells = spelling.cells(result.scored.tokens, known) if known else None
    parts = {
        "While reading": _figures(UNITS[result.run["vocabulary"]["kind"]][0]),
        "Documents": documents.part(result),
        "The text": _text(cells),
        "Words and patterns": _recurring(result, cells),
        "Weights": _weights(result),
        "Settings and provenance": facts_of(result.run),
    }
    parts = {label: part for label, part in parts.items() if part}
    places = {label: f"{identity}-{label.split()[-1].lower()}" for label in parts}
    links = [tag("li", tag("a", label, href=f"#{place}")) for label, place in places.items()]
    sections = [
        tag(
            "section",
            tag(inner, label, id=places[label]),
            part,
            aria_labelledby=places[label],
            class_=places[label].removeprefix(f"{identity}-"),
        )
        for label, part in parts.items()
    ]
    return tag(
        "article",
        tag("p", name, class_="over") if several else None,
        tag(outer, f"{result.run['model']} reads {result.run['corpus']}"),
        tag("section", _summary(result), class_="summary", aria_label="Summary"),
        tag("nav", tag("ul", *links), aria_label="Contents"),
        *sections,
        data(payload(result, cells), class_="payload"),
        id=identity,
        data_name=name,
    )


def rows_of(result: Result) -> dict[str, Any]:
    """Return the figures of each predictor."""
    return {name: row for name, row in result.to_json().items() if name != "run"}


def figure_of(result: Result, name: str, row: Mapping[str, Any]) -> Markup:
    """Return the figure people quote."""
    kind = result.run["vocabulary"]["kind"]
    value, digits = row[QUOTED[kind]], UNITS[kind][1]
    return number(value, f"{value or 0:,.{digits}f}", pointer(name, QUOTED[kind]))


def _summary(result: Result) -> Markup:
    run = result.run
    rows, others = rows_of(result), published.beside(run)
    chosen = views.pair(result)
    columns = [f"{other.model}, published" for other in others]
    unit = UNITS[run["vocabulary"]["kind"]][0]
    heads = ("Predictor", "Tokens", unit, "Gain, %", "p", "Tokens/s", *columns)
    lines = [_line(result, predictor, row, others) for predictor, row in rows.items()]
    return join(
        tag("p", _facts(run), class_="lead"),
        _headline(result, rows, *chosen) if chosen else None,
        table(heads, lines, "Ours and published figures"),
        *(tag("p", note, class_="note") for note in _notes(result, rows, others)),
    )


def _line(
    result: Result, predictor: str, row: Mapping[str, Any], others: Sequence[Other]
) -> Markup:
    """Return a predictor's figures, and beside them what was published of others that read so."""
    pace = row["tokens"] / row["seconds"] if row["seconds"] else None
    chance = row.get("gain", {}).get("p_value")
    beside = [other.values.get(predictor) for other in others]
    cells = [
        number(row["tokens"], f"{row['tokens']:,}", pointer(predictor, "tokens")),
        figure_of(result, predictor, row),
        gain_of(row.get("gain"), predictor),
        None
        if chance is None
        else number(chance, f"{chance:.3f}", pointer(predictor, "gain", "p_value")),
        number(pace, f"{pace or 0:,.0f}"),
        *(None if value is None else number(value, f"{value}") for value in beside),
    ]
    return tag("tr", tag("th", predictor, scope="row"), *(tag("td", cell) for cell in cells))


def _notes(result: Result, rows: Mapping[str, Any], others: Sequence[Other]) -> Iterator[str]:
    """Yield what one has to know to read the table."""
    run = result.run
    if result.gains:
        yield (
            f"Gain: by what part the figure is lower than that of {next(iter(rows))}, with its "
            "interval of 95% from a paired block bootstrap; p is of no difference."
        )
    for other in others:
        unit = UNITS[run["vocabulary"]["kind"]][0]
        where = f" {other.note}" if other.note else ""
        yield f"{other.model}: another model, of Krause et al. (2018), test split, {unit}{where}."
    if run.get("note"):
        yield f"{run['corpus']}: {run['note']}."
    yield from (f"{row['diverged']}." for row in rows.values() if "diverged" in row)


def _facts(run: Mapping[str, Any]) -> Markup:
    weights = f"{run['weights']:,} weights" if "weights" in run else ""
    parts = [run.get("architecture", ""), weights, f"split {run['split']}"]
    return join(", ".join(part for part in parts if part))


def _headline(result: Result, rows: Mapping[str, Any], first: str, second: str) -> Markup:
    """Return the one comparison that the report is about, in large."""
    kind = result.run["vocabulary"]["kind"]

    def card(label: str, value: Markup, unit: object, class_: str | None = None) -> Markup:
        return tag(
            "div",
            tag("dt", label),
            tag("dd", tag("strong", value), " ", tag("span", unit)),
            class_=class_,
        )

    gain = rows[second].get("gain")
    cards = [
        card(first, figure_of(result, first, rows[first]), UNITS[kind][0]),
        card(second, figure_of(result, second, rows[second]), UNITS[kind][0]),
    ]
    if gain and gain["relative"] is not None:
        relative, low, high = (
            number(gain[key], f"{100 * gain[key]:.1f}", pointer(second, "gain", key))
            for key in ("relative", "low", "high")
        )
        interval = join("95%: ", low, " to ", high)
        cards.append(card("gain", join(relative, "%"), interval, "gain"))
    if gain:
        before, after = (rows[name]["nats"] / math.log(2) for name in (first, second))
        saved = number(before - after, f"{before - after:,.0f}")
        cards.append(card("saved", saved, join("of ", number(before, f"{before:,.0f}"), " bits")))
    return tag("dl", *cards, class_="headline")


def _figures(unit: str) -> Markup:
    plots = (
        figure("mean", f"Mean so far, {unit}"),
        figure("bits", "Cumulative bits, and how many were saved"),
        figure("position", "Gain by position, bits/token, with its band of 95%", True),
    )
    return tag("div", *plots, class_="charts")


def _text(cells: spelling.Cells | None) -> Markup:
    if cells is None:
        return tag(
            "p",
            "This result was saved without its vocabulary, so it has no text to show. Evaluate and "
            "save it again to see the text here.",
            class_="note",
        )
    return tag("div", class_="reader")


def _recurring(result: Result, cells: spelling.Cells | None) -> Markup | None:
    chosen = views.pair(result)
    if not cells or not chosen:
        return None
    first, second = chosen
    pieces = views.Pieces(
        cells, views.gains(result, first, second), result.run["vocabulary"]["kind"]
    )
    words, patterns = pieces.words(), pieces.patterns(SHOWN)
    gained = [word for word in words[:SHOWN] if word.gain > 0]
    lost = [word for word in reversed(words[-SHOWN:]) if word.gain < 0]
    tables = [
        _occurrences(gained, "Words that gained most", "Word"),
        _occurrences(patterns, "Patterns that recur", "Pattern"),
        _occurrences(lost, "Words that lost most", "Word"),
    ]
    tables = [table for table in tables if table]
    if not tables:
        return tag("p", "No word and no pattern gained or lost anything.", class_="note")
    note = (
        f"Bits that {second} gained over {first}: in all, where a word or pattern first stood, and "
        "on average where it stood again. What is learned from the first shows in the others."
    )
    return join(tag("p", note, class_="note"), tag("div", *tables, class_="tables"))


def _occurrences(rows: Sequence[Recurring], caption: str, name: str) -> Markup | None:
    lines = [
        tag(
            "tr",
            tag("th", tag("bdi", tag("code", spelling.on_one_line(row.text))), scope="row"),
            tag("td", number(row.count, f"{row.count:,}")),
            *(
                tag("td", number(value, f"{value or 0:+,.1f}"))
                for value in (row.gain, row.first, row.later)
            ),
        )
        for row in rows
    ]
    heads = (name, "Times", "Bits in all", "First", "Later")
    return table(heads, lines, caption, hidden=False) if rows else None


def _weights(result: Result) -> Markup | None:
    tables = []
    for name, score in result.scores.items():
        measured = [key for key in ("relative", "rms") if any(r[key] for r in score.moved.values())]
        drawn = next(iter(measured), "rms")  # what started at zero has no relative distance
        most = max((row[drawn] or 0 for row in score.moved.values()), default=0)
        lines = []
        for weight, row in score.moved.items():
            place = (name, "moved", weight)
            relative, rms = row["relative"], row["rms"]
            lines.append(
                tag(
                    "tr",
                    tag("th", tag("code", weight), scope="row"),
                    tag("td", " × ".join(map(str, row["shape"])) or "1"),
                    tag(
                        "td",
                        number(
                            relative, f"{100 * (relative or 0):.3g}%", pointer(*place, "relative")
                        ),
                    ),
                    tag("td", bar_of(row[drawn] or 0, most), class_="bar"),
                    tag("td", number(rms, f"{rms or 0:.2e}", pointer(*place, "rms"))),
                )
            )
        if lines:
            heads = ("Weight", "Shape", "Moved", "", "RMS")
            tables.append(table(heads, lines, f"How far {name} moved", hidden=False))
    if not tables:
        return None
    note = (
        "The distance of the weights at the end from the trained ones: relative to these, and as a "
        "root mean square."
    )
    return join(tag("p", note, class_="note"), *tables)
