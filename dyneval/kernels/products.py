"""Products: a matrix with a few vectors, at the speed at which the matrix comes from memory.

X holds n inputs of a matrix W (R, C), one a row, and D the gradients of its outputs:

    project   Y += X Wᵀ     (n, C) -> (n, R)
    back      E += D W      (n, R) -> (n, C)
    outer     G  = Dᵀ X     a tile of W's gradient, which is never there as a whole

All three take rows [first, last) of W alone, so that threads and blocks can share the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dyneval.kernels.vectors import INTEGER, SHORT, WIDE, Lanes, Vector, data, over_columns

AHEAD = 2  # tiles: the processor does not see by itself that several rows are read at once
TOKENS = 5  # at most so many inputs in a tile; more go through in turns, W staying in cache
ROWS = 8 if WIDE else 4  # of W in a tile of `outer`, two vectors wide; also the block of an update
_PROJECT_ROWS = 4 if WIDE else 2
_BACK_ROWS = {1: 8, 2: 8, 3: 4, 4: 4, 5: 4} if WIDE else {1: 8, 2: 4, 3: 2, 4: 2, 5: 2}


class Matrix:
    """Addresses within a C-contiguous array of two dimensions."""

    def __init__(self, context: Any, builder: ir.IRBuilder, kind: types.Array, value: Any) -> None:
        self.builder = builder
        self.data = data(context, builder, kind, value)
        shape = context.make_array(kind)(context, builder, value).shape
        self.columns = cgutils.unpack_tuple(builder, shape)[1]

    def at(self, row: ir.Value, column: ir.Value) -> ir.Value:
        """Return the address of an element."""
        offset = self.builder.add(self.builder.mul(row, self.columns), column)
        return self.builder.gep(self.data, [offset])


def _plus(builder: ir.IRBuilder, value: ir.Value, more: int) -> ir.Value:
    return builder.add(value, INTEGER(more)) if more else value


def _over_rows(
    builder: ir.IRBuilder,
    first: ir.Value,
    last: ir.Value,
    rows: int,
    tile: Callable[[ir.Value, int], None],
) -> None:
    """Emit a loop over [first, last) with tiles of `rows`, then of single rows."""
    width = INTEGER(rows)
    whole = builder.add(first, builder.mul(builder.sdiv(builder.sub(last, first), width), width))
    with cgutils.for_range_slice(builder, first, whole, width, INTEGER) as (row, _):
        tile(row, rows)
    if rows > 1:
        with cgutils.for_range_slice(builder, whole, last, INTEGER(1), INTEGER) as (row, _):
            tile(row, 1)


def _by_count(builder: ir.IRBuilder, count: ir.Value, body: Callable[[int], None]) -> None:
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
    typing: Any, w: Any, first: Any, last: Any, x: Any, start: Any, count: Any, y: Any
) -> Any:
    """Y[start : start + count, first : last] += X W[first : last]ᵀ, count <= TOKENS."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        lanes = Lanes(builder, w.dtype)
        matrix, inputs, outputs = (
            Matrix(context, builder, kind, value)
            for kind, value in ((w, arguments[0]), (x, arguments[3]), (y, arguments[6]))
        )
        _, begin, end, _, token, number, _ = arguments

        def tile(row: ir.Value, rows: int, tokens: int) -> None:
            sums = [[lanes.variable() for _ in range(rows)] for _ in range(tokens)]
            for each in sums:
                for one in each:
                    builder.store(lanes.constant(0).ir, one)

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                weights = [
                    lanes.load(matrix.at(_plus(builder, row, a), column), mask) for a in range(rows)
                ]
                for a in range(rows if tokens > 1 else 0):
                    lanes.fetch(matrix.at(_plus(builder, row, AHEAD * rows + a), column))
                for i in range(tokens):
                    given = lanes.load(inputs.at(_plus(builder, token, i), column), mask)
                    for weight, place in zip(weights, sums[i], strict=True):
                        total = Vector(lanes, builder.load(place)) + weight * given
                        builder.store(total.ir, place)

            over_columns(lanes, INTEGER(0), matrix.columns, body)
            for i in range(tokens):
                total = lanes.sums([Vector(lanes, builder.load(place)) for place in sums[i]])
                for a in range(rows):
                    place = outputs.at(_plus(builder, token, i), _plus(builder, row, a))
                    one = builder.extract_element(total, SHORT(a))
                    builder.store(builder.fadd(builder.load(place), one), place)

        def every(tokens: int) -> None:
            _over_rows(
                builder, begin, end, _PROJECT_ROWS, lambda row, rows: tile(row, rows, tokens)
            )

        _by_count(builder, number, every)
        return context.get_dummy_value()

    integer = types.intp
    return types.void(w, integer, integer, x, integer, integer, y), generate


@intrinsic
def _back(
    typing: Any, w: Any, first: Any, last: Any, d: Any, start: Any, count: Any, e: Any, to: Any
) -> Any:
    """E[to : to + count] += D[start : start + count, first : last] W[first : last]."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        lanes = Lanes(builder, w.dtype)
        matrix, gradients, errors = (
            Matrix(context, builder, kind, value)
            for kind, value in ((w, arguments[0]), (d, arguments[3]), (e, arguments[6]))
        )
        _, begin, end, _, token, number, _, target = arguments

        def tile(row: ir.Value, rows: int, tokens: int) -> None:
            factors = [
                [
                    lanes.spread(
                        builder.load(
                            gradients.at(_plus(builder, token, i), _plus(builder, row, a))
                        )
                    )
                    for a in range(rows)
                ]
                for i in range(tokens)
            ]

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                places = [errors.at(_plus(builder, target, i), column) for i in range(tokens)]
                totals = [lanes.load(place, mask) for place in places]
                for a in range(rows):
                    weight = lanes.load(matrix.at(_plus(builder, row, a), column), mask)
                    if tokens > 1:
                        lanes.fetch(matrix.at(_plus(builder, row, AHEAD * rows + a), column))
                    totals = [
                        total + weight * factors[i][a] for i, total in enumerate(totals)
                    ]
                for total, place in zip(totals, places, strict=True):
                    lanes.store(total, place, mask)

            over_columns(lanes, INTEGER(0), matrix.columns, body)

        def every(tokens: int) -> None:
            _over_rows(
                builder, begin, end, _BACK_ROWS[tokens], lambda row, rows: tile(row, rows, tokens)
            )

        _by_count(builder, number, every)
        return context.get_dummy_value()

    integer = types.intp
    return types.void(w, integer, integer, d, integer, integer, e, integer), generate


@intrinsic
def outer(
    typing: Any, d: Any, first: Any, last: Any, x: Any, left: Any, right: Any, count: Any, g: Any
) -> Any:
    """G[0 : last − first, 0 : right − left] = D[: count, first : last]ᵀ X[: count, left : right]."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        lanes = Lanes(builder, d.dtype)
        gradients, inputs, tile_of = (
            Matrix(context, builder, kind, value)
            for kind, value in ((d, arguments[0]), (x, arguments[3]), (g, arguments[7]))
        )
        _, begin, end, _, low, high, number, _ = arguments

        def tile(row: ir.Value, rows: int) -> None:
            def body(column: ir.Value, mask: ir.Value | None) -> None:
                width = 2 if mask is None else 1
                sums = [[lanes.variable() for _ in range(width)] for _ in range(rows)]
                for each in sums:
                    for one in each:
                        builder.store(lanes.constant(0).ir, one)
                with cgutils.for_range(builder, number, intp=INTEGER) as loop:
                    given = [
                        lanes.load(
                            inputs.at(loop.index, _plus(builder, column, k * lanes.count)), mask
                        )
                        for k in range(width)
                    ]
                    for a in range(rows):
                        place = gradients.at(loop.index, _plus(builder, row, a))
                        factor = lanes.spread(builder.load(place))
                        for k in range(width):
                            total = Vector(lanes, builder.load(sums[a][k])) + factor * given[k]
                            builder.store(total.ir, sums[a][k])
                for a in range(rows):
                    for k in range(width):
                        line = _plus(builder, builder.sub(row, begin), a)
                        where = _plus(builder, builder.sub(column, low), k * lanes.count)
                        total = Vector(lanes, builder.load(sums[a][k]))
                        lanes.store(total, tile_of.at(line, where), mask)

            over_columns(lanes, low, high, body, step=2)

        _over_rows(builder, begin, end, ROWS, tile)
        return context.get_dummy_value()

    integer = types.intp
    return types.void(d, integer, integer, x, integer, integer, integer, g), generate


@numba.njit
def turns(count: int, done: int) -> int:
    """Return how many of `count` tokens to take next, in turns of nearly equal size."""
    left = count - done
    rounds = (left + TOKENS - 1) // TOKENS
    return (left + rounds - 1) // rounds
