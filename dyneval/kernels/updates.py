"""Updates: how a weight moves, while its gradient passes by (`rules.py` is the reference).

θ ← θ − gain ⊙ DᵀX + pull ⊙ (θ_g − θ)

    gain = plain + scaled / (√MS_g + ε)
    pull = decay + min(norm · √MS_g, 1)

Five scalars stand for every sum of the known terms, and neither gain, pull nor the gradient DᵀX is
ever stored. What a rule does not need is not read: each of the four cases is code of its own.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from dyneval.kernels.compiling import PLACE, intrinsic, jit, kernel
from dyneval.kernels.plans import Record, at, only, weight
from dyneval.kernels.products import TOKENS, Matrix, by_count, over_rows, plus
from dyneval.kernels.rates import PRIOR, RMS
from dyneval.kernels.vectors import INTEGER, Lanes, Total, Vector, over_columns

_FIRST_CACHE = 16384  # bytes of it that inputs may take
_ROWS = 4  # of a tile, where rows share what they read of inputs and errors
# Bytes to ask for ahead, where rows come one by one: processors follow a row by themselves, but
# only to the end of its 4 KB. Tiles of several rows ask for the next tile.
_AHEAD = 4096


def _moved(
    theta: Vector,
    gradient: Vector,
    prior: Vector | None,
    rms: Vector | None,
    plain: Vector,
    scaled: Vector,
    epsilon: Vector,
    decay: Vector,
    norm: Vector,
) -> Vector:
    gain = plain if rms is None else plain + scaled / (rms + epsilon)
    moved = theta - gain * gradient
    if prior is None:
        return moved
    return moved + _pull(rms, decay, norm) * (prior - theta)


def _pull(rms: Vector | None, decay: Vector, norm: Vector) -> Vector:
    return decay if rms is None else decay + (norm * rms).at_most(1)


class _Weight:
    """A matrix that moves: how to emit what happens at one place of it, with what a rule reads."""

    def __init__(
        self, builder: ir.IRBuilder, lanes: Lanes, arguments: Any, rates: ir.Value, reads: int
    ) -> None:
        self._lanes = lanes
        sources = [Matrix(builder, lanes.place(place), arguments[3]) for place in arguments[:3]]
        needed = (True, bool(reads & PRIOR), bool(reads & RMS))
        self._sources = [s if n else None for s, n in zip(sources, needed, strict=True)]
        self._theta = sources[0]
        self._rates = [lanes.spread(rate) for rate in cgutils.unpack_tuple(builder, rates)]

    def fetch(self, row: ir.Value, column: ir.Value) -> None:
        """Ask for what will be read at a place; of it, θ alone is of use again soon."""
        for source in self._sources:
            if source is not None:
                self._lanes.fetch(source.at(row, column), once=source is not self._theta)

    def load(self, row: ir.Value, column: ir.Value, mask: Any) -> Vector:
        """Return θ."""
        return self._lanes.load(self._theta.at(row, column), mask)

    def move(
        self, row: ir.Value, column: ir.Value, mask: Any, old: Vector, gradient: Vector
    ) -> None:
        """Write what θ becomes."""
        prior, rms = (
            self._lanes.load(source.at(row, column), mask) if source is not None else None
            for source in self._sources[1:]
        )
        moved = _moved(old, gradient, prior, rms, *self._rates)
        self._lanes.store(moved, self._theta.at(row, column), mask)


@intrinsic
def _move(
    typing: Any,
    theta: Any,
    prior: Any,
    rms: Any,
    width: Any,
    rows: Any,
    columns: Any,
    d: Any,
    d_width: Any,
    x: Any,
    x_width: Any,
    count: Any,
    rates: Any,
    reads: Any,
) -> Any:
    """Move θ[rows, columns] by the gradient D[:count, rows]ᵀ X[:count, columns].

    `rows` and `columns` are pairs (first, last). `reads` is a constant, PRIOR, RMS, both or none.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        lanes = Lanes(builder, d.dtype)
        w = _Weight(builder, lanes, arguments, arguments[11], reads.literal_value)
        gradients = Matrix(builder, arguments[6], arguments[7])
        inputs = Matrix(builder, arguments[8], arguments[9])
        begin, end = cgutils.unpack_tuple(builder, arguments[4])
        left, right = cgutils.unpack_tuple(builder, arguments[5])
        number = arguments[10]

        def few(row: ir.Value, tokens: int) -> None:
            factors = [
                lanes.spread(builder.load(gradients.at(INTEGER(i), row))) for i in range(tokens)
            ]

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                gradient = lanes.constant(0)
                w.fetch(row, plus(builder, column, _AHEAD * 8 // lanes.bits))
                for i, factor in enumerate(factors):
                    gradient += factor * lanes.load(inputs.at(INTEGER(i), column), mask)
                w.move(row, column, mask, w.load(row, column, mask), gradient)

            over_columns(lanes, left, right, body)

        def many(row: ir.Value, rows: int) -> None:
            lines = [plus(builder, row, a) for a in range(rows)]

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                sums = [Total(lanes) for _ in lines]
                for line in lines:
                    w.fetch(plus(builder, line, rows), column)
                with cgutils.for_range(builder, number, intp=INTEGER) as loop:
                    given = lanes.load(inputs.at(loop.index, column), mask)
                    for line, total in zip(lines, sums, strict=True):
                        factor = lanes.spread(builder.load(gradients.at(loop.index, line)))
                        total.add(factor * given)
                for line, total in zip(lines, sums, strict=True):
                    w.move(line, column, mask, w.load(line, column, mask), total.value())

            over_columns(lanes, left, right, body)

        def each(tokens: int) -> None:
            over_rows(builder, begin, end, 1, lambda row, rows: few(row, tokens))

        taken = builder.mul(number, builder.sub(right, left))
        is_few = builder.and_(
            builder.icmp_signed("<=", number, INTEGER(TOKENS)),
            builder.icmp_signed("<=", taken, INTEGER(_FIRST_CACHE * 8 // lanes.bits)),
        )
        with builder.if_else(is_few) as (then, otherwise):
            with then:
                by_count(builder, number, each)
            with otherwise:
                over_rows(builder, begin, end, _ROWS, many)
        return context.get_dummy_value()

    size = types.intp
    weights = (theta, prior, rms, size, rows, columns)
    return types.void(*weights, d, size, x, size, size, rates, reads), generate


@intrinsic
def _learn(
    typing: Any,
    theta: Any,
    prior: Any,
    rms: Any,
    width: Any,
    rows: Any,
    d: Any,
    d_width: Any,
    x: Any,
    x_width: Any,
    count: Any,
    e: Any,
    e_width: Any,
    rates: Any,
    reads: Any,
) -> Any:
    """E[:count] += D[:count, rows] θ[rows] and move θ[rows] by DᵀX, count <= TOKENS, in one pass.

    Each θ is read once, for both, and each of D is one register's for both.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        lanes = Lanes(builder, d.dtype)
        w = _Weight(builder, lanes, arguments, arguments[12], reads.literal_value)
        begin, end = cgutils.unpack_tuple(builder, arguments[4])
        gradients, inputs, errors = (
            Matrix(builder, arguments[k], arguments[k + 1]) for k in (5, 7, 10)
        )

        def tile(row: ir.Value, rows: int, tokens: int) -> None:
            lines = [plus(builder, row, a) for a in range(rows)]
            counted = [INTEGER(i) for i in range(tokens)]
            factors = [
                [lanes.spread(builder.load(gradients.at(i, line))) for line in lines]
                for i in counted
            ]

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                for line in lines:
                    w.fetch(plus(builder, line, rows), column)
                old = [w.load(line, column, mask) for line in lines]
                sums = [lanes.constant(0) for _ in lines]
                for i, each in zip(counted, factors, strict=True):
                    given = lanes.load(inputs.at(i, column), mask)
                    error = lanes.load(errors.at(i, column), mask)
                    for k, factor in enumerate(each):
                        sums[k] += factor * given
                        error += old[k] * factor
                    lanes.store(error, errors.at(i, column), mask)
                for line, theta, gradient in zip(lines, old, sums, strict=True):
                    w.move(line, column, mask, theta, gradient)

            over_columns(lanes, INTEGER(0), arguments[3], body)

        def every(tokens: int) -> None:
            over_rows(builder, begin, end, _ROWS, lambda row, r: tile(row, r, tokens))

        by_count(builder, arguments[9], every)
        return context.get_dummy_value()

    size = types.intp
    weights = (theta, prior, rms, size, rows)
    return types.void(*weights, d, size, x, size, size, e, size, rates, reads), generate


@kernel(weight, int, int, int, int, int, PLACE, int, PLACE, int, int)
def move(
    pointer: Any,
    reads: int,
    top: int,
    bottom: int,
    left: int,
    right: int,
    d: Any,
    d_width: int,
    x: Any,
    x_width: int,
    count: int,
) -> None:
    """Move θ[top : bottom, left : right], the gradient there being DᵀX of `count` tokens."""
    w = only(pointer)
    rates = (w.plain, w.scaled, w.epsilon, w.decay, w.norm)
    theta, prior, rms, width = w.theta, w.prior, w.rms, w.columns
    rows, columns = (top, bottom), (left, right)
    # a constant each, so that it is compiled with what it reads and no more
    if reads == 0:
        _move(theta, prior, rms, width, rows, columns, d, d_width, x, x_width, count, rates, 0)
    elif reads == 1:
        _move(theta, prior, rms, width, rows, columns, d, d_width, x, x_width, count, rates, 1)
    elif reads == 2:
        _move(theta, prior, rms, width, rows, columns, d, d_width, x, x_width, count, rates, 2)
    else:
        _move(theta, prior, rms, width, rows, columns, d, d_width, x, x_width, count, rates, 3)


@kernel(weight, int, int, int, PLACE, int, PLACE, int, int, PLACE, int)
def learn(
    pointer: Any,
    reads: int,
    first: int,
    last: int,
    d: Any,
    d_width: int,
    x: Any,
    x_width: int,
    count: int,
    e: Any,
    e_width: int,
) -> None:
    """E += D θ[first : last], and move these rows by DᵀX, `count` <= TOKENS."""
    w = only(pointer)
    rates = (w.plain, w.scaled, w.epsilon, w.decay, w.norm)
    theta, prior, rms, width, rows = w.theta, w.prior, w.rms, w.columns, (first, last)
    if reads == 0:
        _learn(theta, prior, rms, width, rows, d, d_width, x, x_width, count, e, e_width, rates, 0)
    elif reads == 1:
        _learn(theta, prior, rms, width, rows, d, d_width, x, x_width, count, e, e_width, rates, 1)
    elif reads == 2:
        _learn(theta, prior, rms, width, rows, d, d_width, x, x_width, count, e, e_width, rates, 2)
    else:
        _learn(theta, prior, rms, width, rows, d, d_width, x, x_width, count, e, e_width, rates, 3)


@intrinsic
def _pull_back(
    typing: Any, theta: Any, prior: Any, rms: Any, count: Any, times: Any, rates: Any, reads: Any
) -> Any:
    """Pull `count` numbers back `times` times. `reads` is a constant, PRIOR, with RMS or without.

    Each pull is rounded as it would be in `_move` without a gradient, so that it does not matter
    when pulls are made up for. Eight vectors hide how long one pull waits for the one before.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        decay, norm = cgutils.unpack_tuple(builder, arguments[5])
        lanes = Lanes(builder, rates[0])
        weights, priors, scales = (lanes.place(arguments[k]) for k in range(3))
        by_decay, by_norm = lanes.spread(decay), lanes.spread(norm)

        def body(column: ir.Value, mask: ir.Value | None) -> None:
            columns = [plus(builder, column, k * lanes.count) for k in range(8 if not mask else 1)]
            towards = [lanes.load(builder.gep(priors, [c]), mask) for c in columns]
            pulls = [by_decay for _ in columns]
            if reads.literal_value & RMS:
                scale = (lanes.load(builder.gep(scales, [c]), mask) for c in columns)
                pulls = [_pull(rms, by_decay, by_norm) for rms in scale]
            values = [Total(lanes) for _ in columns]
            for c, value in zip(columns, values, strict=True):
                value.set(lanes.load(builder.gep(weights, [c]), mask))
            with cgutils.for_range(builder, arguments[4], intp=INTEGER):
                for value, pull, to in zip(values, pulls, towards, strict=True):
                    value.add(pull * (to - value.value()))
            for c, value in zip(columns, values, strict=True):
                lanes.store(value.value(), builder.gep(weights, [c]), mask)

        over_columns(lanes, INTEGER(0), arguments[3], body, step=8)
        return context.get_dummy_value()

    size = types.intp
    return types.void(theta, prior, rms, size, size, rates, reads), generate


@jit
def catch_up(plan: Record, w: Record, row: int, times: int) -> None:
    """Make up for the pulls that one row missed, as if there had been a gradient of zero."""
    if times <= 0 or not w.reads & PRIOR:
        return
    count, rates = w.columns, (w.decay, w.norm)
    theta, prior, rms = (
        at(plan, w.theta, row, count),
        at(plan, w.prior, row, count),
        at(plan, w.rms, row, count),
    )
    if w.reads & RMS:
        _pull_back(theta, prior, rms, count, times, rates, 3)
    else:
        _pull_back(theta, prior, rms, count, times, rates, 1)
