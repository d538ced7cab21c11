"""`dyneval compare`: whether one saved result is better than another by more than luck."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from dyneval.results import Result


def compare(
    a: Annotated[Path, Argument(help="A result that `evaluate --save` wrote.", metavar="A.json")],
    b: Annotated[
        Path | None, Argument(help="Another, of the same text (default: A).", metavar="B.json")
    ] = None,
    predictor_a: Annotated[str | None, Option(help="Of A (default: each, by name).")] = None,
    predictor_b: Annotated[str | None, Option(help="Of B (default: the same).")] = None,
    figure: Annotated[
        str | None, Option(help="perplexity, bits_per_byte, … (default: the one people quote)")
    ] = None,
    block_length: Annotated[
        int | None, Option(help="Tokens of a block (default: from the autocorrelation)")
    ] = None,
    level: Annotated[float, Option(help="Of the interval.")] = 0.95,
    json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two results token by token, or the predictors of one with its first."""
    from rich.console import Console

    from dyneval import report, results

    first = results.load(a)
    second = first if b is None else results.load(b)
    compared = [
        results.compare(first, second, names, figure=figure, block_length=block_length, level=level)
        for names in _names(first, second, predictor_a, predictor_b)
    ]
    files = [str(a), str(b or a)]
    if json:
        print(json_.dumps({"files": files, "pairs": compared}))
    else:
        Console().print(report.pairs(compared, files))


def _names(
    first: Result, second: Result, predictor_a: str | None, predictor_b: str | None
) -> list[tuple[str, str]]:
    """Return which predictors to compare: of equal name, or in one result each with the first."""
    if first is second:
        predictor_a = predictor_a or next(iter(first.scores), "")
        others = [predictor_b] if predictor_b else [k for k in first.scores if k != predictor_a]
        pairs = [(predictor_a, name) for name in others]
        missing = "the result has one predictor; give another result to compare it with"
    elif predictor_a or predictor_b:
        return [(predictor_a or predictor_b or "", predictor_b or predictor_a or "")]
    else:
        pairs = [(name, name) for name in first.scores if name in second.scores]
        missing = (
            f"the results have no predictor of one name ({', '.join(first.scores)}; "
            f"{', '.join(second.scores)}); name two with --predictor-a and --predictor-b"
        )
    if not pairs:
        raise ValueError(missing)
    return pairs
