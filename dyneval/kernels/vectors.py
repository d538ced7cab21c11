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

from dyneval.kernels.compiling import intrinsic

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
        self.builder, self.number = builder, number
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

    def place(self, address: ir.Value) -> ir.Value:
        """Return the pointer to the numbers at an address."""
        return self.builder.inttoptr(address, self.element.as_pointer())

    def below(self, count: ir.Value) -> ir.Value:
        """Return a mask of the first `count` lanes."""
        numbers = ir.Constant(ir.VectorType(INTEGER, self.count), list(range(self.count)))
        return self.builder.icmp_signed("<", numbers, _spread(self.builder, count, self.count))

    def load(self, pointer: ir.Value, mask: ir.Value | None = None) -> Vector:
        """Return the numbers at an address; zero in the lanes that a mask leaves out."""
        pointer = self.builder.bitcast(pointer, self.type.as_pointer())
        if mask is None:
            return Vector(self, self.builder.load(pointer, align=self.bits // 8))
        name = f"llvm.masked.load.v{self.count}f{self.bits}.p0"
        nothing = ir.Constant(self.type, None)
        return Vector(self, self.call(name, pointer, SHORT(self.bits // 8), mask, nothing))

    def store(self, value: Vector, pointer: ir.Value, mask: ir.Value | None = None) -> None:
        """Write the numbers to an address, but for the lanes that a mask leaves out."""
        pointer = self.builder.bitcast(pointer, self.type.as_pointer())
        if mask is None:
            self.builder.store(value.ir, pointer, align=self.bits // 8)
        else:
            name = f"llvm.masked.store.v{self.count}f{self.bits}.p0"
            arguments = (value.ir, pointer, SHORT(self.bits // 8), mask)
            self.call(name, *arguments, returns=ir.VoidType())

    def fetch(self, pointer: ir.Value, *, once: bool = False) -> None:
        """Ask for what is at an address to be brought from memory; it may lie behind an array.

        What is needed `once` need not stay in the caches.
        """
        near = SHORT(0 if once else 3)
        self.call("llvm.prefetch.p0", pointer, SHORT(0), near, SHORT(1), returns=ir.VoidType())

    def call(self, name: str, *arguments: ir.Value, returns: ir.Type | None = None) -> ir.Value:
        """Call one of LLVM's own functions; it returns a vector unless told otherwise."""
        kind = ir.FunctionType(returns or self.type, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

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
        lanes = self.lanes
        return Vector(lanes, lanes.call(f"llvm.rint.v{lanes.count}f{lanes.bits}", self.ir))

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


class Total:
    """A sum that grows in a loop: a place on the stack, which LLVM makes a register."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes, self._place = lanes, cgutils.alloca_once(lanes.builder, lanes.type)
        self.set(lanes.constant(0))

    def value(self) -> Vector:
        """Return the sum so far."""
        return Vector(self._lanes, self._lanes.builder.load(self._place))

    def set(self, value: Vector) -> None:
        """Forget the sum so far."""
        self._lanes.builder.store(value.ir, self._place)

    def add(self, value: Vector) -> None:
        """Add to the sum."""
        self.set(self.value() + value)


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


def columnwise(formula: Callable[..., Vector | tuple[Vector, ...]]) -> Any:
    """Make a numba function `(one, first, last, reads, writes)` of a formula on vectors.

    `reads` is a tuple of addresses of rows and of numbers, `writes` one of addresses; they may be
    the same. At each column from `first` to `last`, the formula is given what is read there and
    returns what is written there, in the precision of `one`.
    """

    @intrinsic
    def run(typing: Any, one: Any, first: Any, last: Any, reads: Any, writes: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            lanes = Lanes(builder, one)
            sources = _sources(context, lanes, reads, arguments[3])
            places = [lanes.place(a) for a in cgutils.unpack_tuple(builder, arguments[4])]

            def body(column: ir.Value, mask: ir.Value | None) -> None:
                results = formula(*(source(column, mask) for source in sources))
                results = results if isinstance(results, tuple) else (results,)
                for result, place in zip(results, places, strict=True):
                    lanes.store(result, builder.gep(place, [column]), mask)

            over_columns(lanes, arguments[1], arguments[2], body)
            return context.get_dummy_value()

        return types.void(one, types.intp, types.intp, reads, writes), generate

    return run


def _sources(
    context: Any, lanes: Lanes, kinds: Any, values: ir.Value
) -> list[Callable[[ir.Value, ir.Value | None], Vector]]:
    """Return what gives the vector at a column, for each row or number of a tuple."""

    def source(kind: Any, value: ir.Value) -> Callable[[ir.Value, ir.Value | None], Vector]:
        if isinstance(kind, types.Float):
            number = lanes.spread(context.cast(lanes.builder, value, kind, lanes.number))
            return lambda column, mask: number
        place = lanes.place(value)
        return lambda column, mask: lanes.load(lanes.builder.gep(place, [column]), mask)

    each = cgutils.unpack_tuple(lanes.builder, values)
    return [source(kind, value) for kind, value in zip(kinds, each, strict=True)]
