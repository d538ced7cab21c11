"""Products: a matrix with a few vectors, at the speed at which the matrix comes from memory.

X holds n inputs of a matrix W (R, C), one a row, and D the gradients of its outputs:

    project   Y += X Wᵀ     (n, C) -> (n, R)
    back      E += D W      (n, R) -> (n, C)

Both take rows [first, last) of W alone, so that threads and blocks can share the work. W's own
gradient Dᵀ X is formed in `updates.py`, where it is used up at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from dyneval.kernels.compiling import PLACE, intrinsic, jit, kernel
from dyneval.kernels.vectors import INTEGER, SHORT, WIDE, Lanes, Total, over_columns

TOKENS = 5  # at most so many inputs in a tile; more go through in turns, W staying in cache
BLOCK = 64  # rows of W that stay in cache while all turns pass

# Several rows at a time share each input, and keep more of W under way from memory than one row
# does. With several inputs this takes long enough that the next two tiles have to be asked for.
_ROWS = 4 if WIDE else 2
_ROWS_OF_ONE = 8
_BACK_ROWS = 8
_AHEAD = 2


class Matrix:
    """Pointers to the numbers of a matrix; a row begins `width` numbers after the one before."""

    def __init__(self, builder: ir.IRBuilder, first: ir.Value, width: ir.Value) -> None:
        self._builder, self._first, self._width = builder, first, width

    def at(self, row: ir.Value, column: ir.Value) -> ir.Value:
        """Return the pointer to a number."""
        offset = self._builder.add(self._builder.mul(row, self._width), column)
        return self._builder.gep(self._first, [offset])


def plus(builder: ir.IRBuilder, value: ir.Value, more: int) -> ir.Value:
    """Return value + more."""
    return builder.add(value, INTEGER(more)) if more else value


def over_rows(
    builder: ir.IRBuilder,
    first: ir.Value,
    last: ir.Value,
    rows: int,
    tile: Callable[[ir.Value, int], None],
) -> None:
    """Emit a loop over rows [first, last) with tiles of `rows`, then of single rows."""
    width = INTEGER(rows)
    whole = builder.add(first, builder.mul(builder.sdiv(builder.sub(last, first), width), width))
    with cgutils.for_range_slice(builder, first, whole, width, INTEGER) as (row, _):
        tile(row, rows)
    if rows > 1:
        with cgutils.for_range_slice(builder, whole, last, INTEGER(1), INTEGER) as (row, _):
            tile(row, 1)


def by_count(builder: ir.IRBuilder, count: ir.Value, body: Callable[[int], None]) -> None:
    """Emit `body` for every number of tokens of a tile, and the choice between them."""
    after = builder.append_basic_block("after")
    choice = builder.switch(count, after)
    for tokens in range(1, TOKENS + 1):
        block = builder.append_basic_block(f"tokens{tokens}")
        choice.add_case(INTEGER(tokens), block)
        builder.position_at_end(block)
        body(tokens)
        builder.branch(after)
    builder.position_at_end(after)


@intrinsic
def _project(
    typing: Any,
    w: Any,
    columns: Any,
    first: Any,
    last: Any,
    x: Any,
    x_width: Any,
    start: Any,
    count: Any,
    y: Any,
    y_width: Any,
) -> Any:
    """Y[start : start + count, first : last] += X W[first : last]ᵀ, count <= TOKENS."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        lanes = Lanes(builder, w.dtype)
        columns, begin, end, token, number = (arguments[k] for k in (1, 2, 3, 6, 7))
        matrix, inputs, outputs = (
            Matrix(builder, arguments[k], arguments[k + 1]) for k in (0, 4, 8)
        )

        def tile(row: ir.Value, rows: int, tokens: int) -> None:
            sums = [[Total(lanes) for _ in range(rows)] for _ in range(tokens)]
            lines = [plus(builder, row, a) for a in range(rows)]

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                weights = [lanes.load(matrix.at(line, column), mask) for line in lines]
                for line in lines if tokens > 1 else ():
                    lanes.fetch(matrix.at(plus(builder, line, _AHEAD * rows), column))
                for i in range(tokens):
                    given = lanes.load(inputs.at(plus(builder, token, i), column), mask)
                    for weight, total in zip(weights, sums[i], strict=True):
                        total.add(weight * given)

            over_columns(lanes, INTEGER(0), columns, body)
            for i in range(tokens):
                total = lanes.sums([total.value() for total in sums[i]])
                for a in range(rows):
                    place = outputs.at(plus(builder, token, i), plus(builder, row, a))
                    one = builder.extract_element(total, SHORT(a))
                    builder.store(builder.fadd(builder.load(place), one), place)

        def every(tokens: int) -> None:
            over_rows(
                builder,
                begin,
                end,
                _ROWS if tokens > 1 else _ROWS_OF_ONE,
                lambda row, rows: tile(row, rows, tokens),
            )

        by_count(builder, number, every)
        return context.get_dummy_value()

    size = types.intp
    return types.void(w, size, size, size, x, size, size, size, y, size), generate


@intrinsic
def _back(
    typing: Any,
    w: Any,
    columns: Any,
    first: Any,
    last: Any,
    d: Any,
    d_width: Any,
    start: Any,
    count: Any,
    e: Any,
    e_width: Any,
) -> Any:
    """E[start : start + count] += D[start : start + count, first : last] W[first : last]."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        lanes = Lanes(builder, w.dtype)
        columns, begin, end, token, number = (arguments[k] for k in (1, 2, 3, 6, 7))
        matrix, gradients, errors = (
            Matrix(builder, arguments[k], arguments[k + 1]) for k in (0, 4, 8)
        )

        def tile(row: ir.Value, rows: int, tokens: int) -> None:
            inputs = [plus(builder, token, i) for i in range(tokens)]
            lines = [plus(builder, row, a) for a in range(rows)]
            factors = [
                [lanes.spread(builder.load(gradients.at(i, line))) for i in inputs]
                for line in lines
            ]

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                places = [errors.at(i, column) for i in inputs]
                totals = [lanes.load(place, mask) for place in places]
                for line, each in zip(lines, factors, strict=True):
                    weight = lanes.load(matrix.at(line, column), mask)
                    if tokens > 1:
                        lanes.fetch(matrix.at(plus(builder, line, _AHEAD * rows), column))
                    totals = [
                        total + weight * factor for total, factor in zip(totals, each, strict=True)
                    ]
                for total, place in zip(totals, places, strict=True):
                    lanes.store(total, place, mask)

            over_columns(lanes, INTEGER(0), columns, body)

        def every(tokens: int) -> None:
            over_rows(builder, begin, end, _BACK_ROWS, lambda row, rows: tile(row, rows, tokens))

        by_count(builder, number, every)
        return context.get_dummy_value()

    size = types.intp
    return types.void(w, size, size, size, d, size, size, size, e, size), generate


@jit
def _turn(left: int) -> int:
    """Return how many of the tokens that are left to take next, in turns of nearly equal size."""
    turns = (left + TOKENS - 1) // TOKENS
    return (left + turns - 1) // turns


@kernel(PLACE, int, int, int, PLACE, int, int, int, PLACE, int, int)
def project(
    w: Any,
    columns: int,
    first: int,
    last: int,
    x: Any,
    x_width: int,
    start: int,
    count: int,
    y: Any,
    y_width: int,
    backwards: int,
) -> None:
    """Y[start : start + count, first : last] += X Wᵀ, from the first row or from the last.

    Going through W in turn from either end, what the cache still holds of it is used first.
    """
    blocks = (last - first + BLOCK - 1) // BLOCK
    for k in range(blocks):
        begin = first + BLOCK * (blocks - 1 - k if backwards else k)
        end = min(begin + BLOCK, last)
        done = 0
        while done < count:
            turn = _turn(count - done)
            _project(w, columns, begin, end, x, x_width, start + done, turn, y, y_width)
            done += turn


@kernel(PLACE, int, int, int, PLACE, int, int, int, PLACE, int, int)
def back(
    w: Any,
    columns: int,
    first: int,
    last: int,
    d: Any,
    d_width: int,
    start: int,
    count: int,
    e: Any,
    e_width: int,
    backwards: int,
) -> None:
    """E[start : start + count] += D[:, first : last] W[first : last], as `project` goes."""
    blocks = (last - first + BLOCK - 1) // BLOCK
    for k in range(blocks):
        begin = first + BLOCK * (blocks - 1 - k if backwards else k)
        end = min(begin + BLOCK, last)
        done = 0
        while done < count:
            turn = _turn(count - done)
            _back(w, columns, begin, end, d, d_width, start + done, turn, e, e_width)
            done += turn
