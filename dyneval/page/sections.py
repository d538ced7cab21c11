"""Sections: the parts of a page that stand without a script, as tables that can be read aloud.

Every number that is in the result's file carries its place there, and its value in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dyneval import published, spelling, views
from dyneval.page.markup import Markup, data, join, number, pointer, tag
from dyneval.page.payload import payload
from dyneval.published import Published
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
        "The text": _text(cells),
        "Words and patterns": _recurring(result, cells),
        "Weights": _weights(result),
        "Settings and provenance": settings_of(result.run),
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


def overview(results: Mapping[str, tuple[str, Result]]) -> Markup:
    """Return one row for each predictor of each result, by the id of its article."""
    rows = []
    for identity, (name, result) in results.items():
        link = tag("a", name, href=f"#{identity}")
        kind = result.run["vocabulary"]["kind"]
        for predictor, row in _rows(result).items():
            rows.append(
                tag(
                    "tr",
                    tag("th", link, scope="row"),
                    tag("td", predictor),
                    tag("td", _figure(result, predictor, row), " ", tag("small", UNITS[kind][0])),
                    tag("td", _gain(predictor, row)),
                    data_result=identity,
                )
            )
    whole = table(("Result", "Predictor", "Figure", "Gain (95%)"), rows, "All results", 2)
    return tag("section", tag("h2", "All results"), whole, class_="overview")


def _rows(result: Result) -> dict[str, Any]:
    return {name: row for name, row in result.to_json().items() if name != "run"}


def _figure(result: Result, name: str, row: Mapping[str, Any]) -> Markup:
    kind = result.run["vocabulary"]["kind"]
    value, digits = row[QUOTED[kind]], UNITS[kind][1]
    return number(value, f"{value or 0:,.{digits}f}", pointer(name, QUOTED[kind]))


def _gain(name: str, row: Mapping[str, Any]) -> Markup | None:
    gain = row.get("gain")
    if not gain or gain["relative"] is None:
        return None

    def percent(key: str, form: str) -> Markup:
        return number(gain[key], f"{100 * gain[key]:{form}}", pointer(name, "gain", key))

    ends = percent("low", ".1f"), percent("high", ".1f")
    interval = join(" [", ends[0], ", ", ends[1], "]")
    return join(percent("relative", "+.1f"), "%", tag("small", interval))


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


def _summary(result: Result) -> Markup:
    run = result.run
    rows, others = _rows(result), published.beside(run)
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
    result: Result, predictor: str, row: Mapping[str, Any], others: Sequence[Published]
) -> Markup:
    """Return a predictor's figures, and beside them what was published of others that read so."""
    pace = row["tokens"] / row["seconds"] if row["seconds"] else None
    chance = row.get("gain", {}).get("p_value")
    beside = [other.values.get(predictor) for other in others]
    cells = [
        number(row["tokens"], f"{row['tokens']:,}", pointer(predictor, "tokens")),
        _figure(result, predictor, row),
        _gain(predictor, row),
        None
        if chance is None
        else number(chance, f"{chance:.3f}", pointer(predictor, "gain", "p_value")),
        number(pace, f"{pace or 0:,.0f}"),
        *(None if value is None else number(value, f"{value}") for value in beside),
    ]
    return tag("tr", tag("th", predictor, scope="row"), *(tag("td", cell) for cell in cells))


def _notes(result: Result, rows: Mapping[str, Any], others: Sequence[Published]) -> Iterator[str]:
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
        card(first, _figure(result, first, rows[first]), UNITS[kind][0]),
        card(second, _figure(result, second, rows[second]), UNITS[kind][0]),
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


def figure(name: str, caption: str, whole: bool = False) -> Markup:
    """Return a place where the script draws, in half of the width or the whole."""
    inner = tag("figcaption", caption), tag("div", class_="plot")
    return tag("figure", *inner, data_chart=name, class_="chart whole" if whole else "chart")


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


def _shown(text: str) -> str:
    """Return a text that can be seen, on one line."""
    return spelling.visible(text).replace("\n", "").replace("\t", "")


def _occurrences(rows: Sequence[Recurring], caption: str, name: str) -> Markup | None:
    lines = [
        tag(
            "tr",
            tag("th", tag("bdi", tag("code", _shown(row.text))), scope="row"),
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
            length = 100 * (row[drawn] or 0) / most if most else 0
            bar = tag(
                "svg",
                tag("rect", width=f"{length:.1f}%", height="100%", rx=2),
                class_="meter",
                aria_hidden="true",
            )
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
                    tag("td", bar, class_="bar"),
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


def settings_of(run: Mapping[str, Any]) -> Markup:
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
        tag("dl", *rules, class_="facts rules"),
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
