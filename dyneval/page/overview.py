"""Overviews: what several results of a page say, a row for each predictor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dyneval import published
from dyneval.page.markup import Markup, number, pointer, tag
from dyneval.page.parts import gain_of, table
from dyneval.page.sections import figure_of, rows_of
from dyneval.report import UNITS
from dyneval.results import Result
from dyneval.views import Shown

Row = tuple[str, Markup, str, Markup | None]  # predictor, figure, its unit, gain


def section(shown: Mapping[str, tuple[str, Shown]]) -> Markup | None:
    """Return one row for each predictor of results and studies, by the id of their article."""
    rows = [
        tag(
            "tr",
            tag("th", tag("a", name, href=f"#{identity}"), scope="row"),
            tag("td", predictor),
            tag("td", figure, " ", tag("small", unit)),
            tag("td", gain),
            data_result=identity,
        )
        for identity, (name, one) in shown.items()
        for predictor, figure, unit, gain in _rows(one)
    ]
    if not rows:
        return None
    whole = table(("Result", "Predictor", "Figure", "Gain (95%)"), rows, "All results", 2)
    return tag("section", tag("h2", "All results"), whole, class_="overview")


def _rows(one: Shown) -> Iterator[Row]:
    if isinstance(one, Result):
        unit = UNITS[one.run["vocabulary"]["kind"]][0]
        for predictor, row in rows_of(one).items():
            yield (
                predictor,
                figure_of(one, predictor, row),
                unit,
                gain_of(row.get("gain"), predictor),
            )
        return
    for line in published.ours(one) if "studies" in one else ():
        test = line.figures["test"]
        shown = number(test, f"{test or 0:,.{line.digits}f}", pointer(*line.place, "test"))
        yield f"{line.name}: {line.row}", shown, one["figure"], gain_of(line.gain, *line.place)
