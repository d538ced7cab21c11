"""Vectors: arithmetic on whole registers, written once for every width and precision.

numba leaves it to LLVM whether a loop becomes vector code, and LLVM gives up where many arrays
might overlap, which is the case for most loops here. So the inner loops are written on `Vector`s
of explicit width: ordinary Python operators that emit LLVM instructions. `columnwise` makes a
numba function of a plain formula; `products.py` unrolls its tiles with the same class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2]
WIDE = "+avx512f" in _FEATURES  # 32 registers of 64 bytes; otherwise count on 16 of 32 bytes
BYTES = 64 if WIDE else 32

INTEGER, SHORT = ir.IntType(64), ir.IntType(32)
# contract: a·b + c may be rounded once. Nothing else is relaxed: NaN and infinity stay
_FLAGS = ("contract",)

_LN2 = {  # ln 2 in two parts: the first times a small integer is exact
    "float": (0.693359375, -2.12194440e-4),
    "double": (0.693145751953125, 1.42860682030941723212e-6),
}
_TERMS = {"float": 7, "double": 13}  # of e^r for |r| <= ln 2 / 2, to the last bit


class Lanes:
    """How to emit instructions on vectors of one precision into one function."""

    def __init__(self, builder: ir.IRBuilder, number: types.Float) -> None:
        self.builder = builder
        self.element = ir.FloatType() if number.bitwidth == 32 else ir.DoubleType()
        self.bits = number.bitwidth
        self.count = BYTES * 8 // number.bitwidth
        self.type = ir.VectorType(self.element, self.count)

    def constant(self, value: float) -> Vector:
        """Return a number in every lane."""
        return Vector(self, ir.Constant(self.type, [value] * self.count))

    def spread(self, value: ir.Value) -> Vector:
        """Return a number that is known at run time only, in every lane."""
        return Vector(self, _spread(self.builder, value, self.count))

    def below(self, count: ir.Value) -> ir.Value:
        """Return a mask of the first `count` lanes."""
        numbers = ir.Constant(ir.VectorType(INTEGER, self.count), list(range(self.count)))
        return self.builder.icmp_signed("<", numbers, _spread(self.builder, count, self.count))

    def load(self, pointer: ir.Value, mask: ir.Value | None = None) -> Vector:
        """Return the numbers at an address; zero in the lanes that a mask leaves out."""
        pointer = self.builder.bitcast(pointer, self.type.as_pointer())
        if mask is None:
            return Vector(self, self.builder.load(pointer, align=self.bits // 8))
        arguments = [pointer, SHORT(self.bits // 8), mask, ir.Constant(self.type, None)]
        return Vector(self, self._masked("load", self.type, arguments))

    def store(self, value: Vector, pointer: ir.Value, mask: ir.Value | None = None) -> None:
        """Write the numbers to an address, but for the lanes that a mask leaves out."""
        pointer = self.builder.bitcast(pointer, self.type.as_pointer())
        if mask is None:
            self.builder.store(value.ir, pointer, align=self.bits // 8)
        else:
            self._masked("store", ir.VoidType(), [value.ir, pointer, SHORT(self.bits // 8), mask])

    def fetch(self, pointer: ir.Value) -> None:
        """Ask for what is at an address to be brought from memory; it may lie behind an array."""
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, SHORT, SHORT, SHORT])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(function, [pointer, SHORT(0), SHORT(3), SHORT(1)])

    def _masked(self, name: str, result: ir.Type, arguments: list[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        name = f"llvm.masked.{name}.v{self.count}f{self.bits}.p0"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

    def variable(self) -> Any:
        """Return a place for a vector that changes in a loop; it becomes a register."""
        return cgutils.alloca_once(self.builder, self.type)

    def sums(self, vectors: Sequence[Vector]) -> ir.Value:
        """Return the sums over the lanes of 1, 2, 4, … vectors, as a short vector.

        Each round adds the halves of all blocks, at first one block a vector, and packs them.
        """
        values, block = [vector.ir for vector in vectors], self.count
        while block > 1:
            block //= 2
            pairs = list(zip(values[::2], values[1::2], strict=False)) or [(values[0], values[0])]
            lanes = range(values[0].type.count * min(len(values), 2))
            first = [k for k in lanes if k // block % 2 == 0]
            second = [k for k in lanes if k // block % 2 == 1]
            values = [
                self.builder.fadd(
                    self.builder.shuffle_vector(a, b, _indices(first)),
                    self.builder.shuffle_vector(a, b, _indices(second)),
                )
                for a, b in pairs
            ]
        return values[0]


class Vector:
    """One number in each lane of a register; the operators emit LLVM instructions."""

    def __init__(self, lanes: Lanes, value: ir.Value) -> None:
        self.lanes, self.ir = lanes, value

    def _with(self, instruction: str, other: Vector | float, swap: bool = False) -> Vector:
        if not isinstance(other, Vector):
            other = self.lanes.constant(other)
        a, b = (other, self) if swap else (self, other)
        emit = getattr(self.lanes.builder, instruction)
        return Vector(self.lanes, emit(a.ir, b.ir, flags=_FLAGS))

    def __add__(self, other: Vector | float) -> Vector:
        return self._with("fadd", other)

    def __sub__(self, other: Vector | float) -> Vector:
        return self._with("fsub", other)

    def __mul__(self, other: Vector | float) -> Vector:
        return self._with("fmul", other)

    def __truediv__(self, other: Vector | float) -> Vector:
        return self._with("fdiv", other)

    def __radd__(self, other: float) -> Vector:
        return self._with("fadd", other, swap=True)

    def __rsub__(self, other: float) -> Vector:
        return self._with("fsub", other, swap=True)

    def __rmul__(self, other: float) -> Vector:
        return self._with("fmul", other, swap=True)

    def __rtruediv__(self, other: float) -> Vector:
        return self._with("fdiv", other, swap=True)

    def at_most(self, other: Vector | float) -> Vector:
        """Return the smaller of the two; NaN stays NaN."""
        return self._choose("<", other)

    def at_least(self, other: Vector | float) -> Vector:
        """Return the larger of the two; NaN stays NaN."""
        return self._choose(">", other)

    def _choose(self, comparison: str, other: Vector | float) -> Vector:
        if not isinstance(other, Vector):
            other = self.lanes.constant(other)
        builder = self.lanes.builder
        chosen = builder.fcmp_ordered(comparison, other.ir, self.ir)
        return Vector(self.lanes, builder.select(chosen, other.ir, self.ir))

    def rounded(self) -> Vector:
        """Return the nearest integers."""
        kind = self.lanes.type
        function = self.lanes.builder.module.declare_intrinsic("llvm.rint", [kind])
        return Vector(self.lanes, self.lanes.builder.call(function, [self.ir]))

    def power_of_two(self) -> Vector:
        """Return 2^k of integers k, by writing k where a number keeps its exponent."""
        builder, bits = self.lanes.builder, self.lanes.bits
        digits, bias = (23, 127) if bits == 32 else (52, 1023)
        kind = ir.VectorType(ir.IntType(bits), self.lanes.count)

        def every(value: int) -> ir.Constant:
            return ir.Constant(kind, [value] * self.lanes.count)

        exponent = builder.add(builder.fptosi(self.ir, kind), every(bias))
        return Vector(
            self.lanes, builder.bitcast(builder.shl(exponent, every(digits)), self.lanes.type)
        )


def _spread(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    kind = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, SHORT(0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), _indices([0] * count))


def _indices(numbers: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(SHORT, len(numbers)), numbers)


def _reduced(x: Vector) -> tuple[Vector, Vector]:
    """Return e^r − 1 and 2^k, where x = r + k ln 2 and |r| <= ln 2 / 2."""
    name = str(x.lanes.element)
    k = (x * (1 / math.log(2))).rounded()
    high, low = _LN2[name]
    r = x - k * high - k * low
    series = x.lanes.constant(1 / math.factorial(_TERMS[name]))
    for power in reversed(range(1, _TERMS[name])):
        series = series * r + 1 / math.factorial(power)
    return series * r, k.power_of_two()


def exp(x: Vector) -> Vector:
    """Return e^x, kept within what the precision can hold."""
    most = 88.0 if x.lanes.bits == 32 else 709.0
    less_one, scale = _reduced(x.at_most(most).at_least(1 - most))
    return less_one * scale + scale


def sigmoid(x: Vector) -> Vector:
    """Return 1 / (1 + e^−x)."""
    return 1 / (1 + exp(0 - x))


def tanh(x: Vector) -> Vector:
    """Return tanh x = (e^2x − 1) / (e^2x + 1), exact for small x too."""
    less_one, scale = _reduced((2 * x).at_most(40.0).at_least(-40.0))
    minus = less_one * scale + (scale - 1)
    return minus / (minus + 2)


Body = Callable[[ir.Value, ir.Value | None], None]  # (column, mask)


def over_columns(lanes: Lanes, first: ir.Value, last: ir.Value, body: Body, step: int = 1) -> None:
    """Emit a loop over [first, last), `step` vectors at a time, then the rest under a mask.

    Where step > 1, `body` is given the first column of `step` whole vectors; the columns that are
    left come one vector at a time, with a mask.
    """
    builder, count = lanes.builder, lanes.count
    width = INTEGER(count * step)
    whole = builder.add(first, builder.mul(builder.sdiv(builder.sub(last, first), width), width))
    with cgutils.for_range_slice(builder, first, whole, width, INTEGER) as (column, _):
        body(column, None)
    with cgutils.for_range_slice(builder, whole, last, INTEGER(count), INTEGER) as (column, _):
        body(column, lanes.below(builder.sub(last, column)))


def data(context: Any, builder: ir.IRBuilder, kind: types.Array, value: ir.Value) -> ir.Value:
    """Return the address of an array's first number."""
    return context.make_array(kind)(context, builder, value).data


def columnwise(formula: Callable[..., Vector | tuple[Vector, ...]]) -> Any:
    """Make a numba function `(first, last, reads, writes)` of a formula on vectors.

    `reads` is a tuple of one-dimensional arrays and numbers, `writes` one of arrays; they may be
    the same ones. At each column from `first` to `last`, the formula is given what is read there
    and returns what is written there.
    """

    @intrinsic
    def run(typing: Any, first: Any, last: Any, reads: Any, writes: Any) -> Any:
        number = writes[0].dtype

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            lanes = Lanes(builder, number)
            start, end = arguments[:2]
            sources = []
            for kind, value in zip(reads, cgutils.unpack_tuple(builder, arguments[2]), strict=True):
                if isinstance(kind, types.Array):
                    sources.append(data(context, builder, kind, value))
                else:
                    sources.append(lanes.spread(context.cast(builder, value, kind, number)))
            places = [
                data(context, builder, kind, value)
                for kind, value in zip(
                    writes, cgutils.unpack_tuple(builder, arguments[3]), strict=True
                )
            ]

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                values = [
                    source
                    if isinstance(source, Vector)
                    else lanes.load(builder.gep(source, [column]), mask)
                    for source in sources
                ]
                results = formula(*values)
                results = results if isinstance(results, tuple) else (results,)
                for result, place in zip(results, places, strict=True):
                    lanes.store(result, builder.gep(place, [column]), mask)

            over_columns(lanes, start, end, body)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, reads, writes), generate

    return run


def over_lanes(
    formula: Callable[..., Vector], join: Callable[[Vector, Vector], Vector], start: float
) -> Any:
    """Make a numba function `(first, last, reads)` that joins a formula's values to one number."""

    @intrinsic
    def run(typing: Any, first: Any, last: Any, reads: Any) -> Any:
        number = reads[0].dtype

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            lanes = Lanes(builder, number)
            begin, end, given = arguments
            row, *numbers = cgutils.unpack_tuple(builder, given)
            source = data(context, builder, reads[0], row)
            spread = [
                lanes.spread(context.cast(builder, value, kind, number))
                for kind, value in zip(reads[1:], numbers, strict=True)
            ]
            neutral = lanes.constant(start)
            joined = lanes.variable()
            builder.store(neutral.ir, joined)

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                value = formula(lanes.load(builder.gep(source, [column]), mask), *spread)
                if mask is not None:
                    value = Vector(lanes, builder.select(mask, value.ir, neutral.ir))
                builder.store(join(Vector(lanes, builder.load(joined)), value).ir, joined)

            over_columns(lanes, begin, end, body)
            whole = builder.load(joined)
            while whole.type.count > 1:
                half = whole.type.count // 2
                parts = [
                    builder.shuffle_vector(whole, whole, _indices(list(range(k, k + half))))
                    for k in (0, half)
                ]
                whole = join(*(Vector(lanes, part) for part in parts)).ir
            return builder.extract_element(whole, SHORT(0))

        return number(types.intp, types.intp, reads), generate

    return run
