"""Plans: what a kernel is told, as records of plain numbers and addresses.

A record costs one pointer to hand over, whatever it holds. The Python side fills it
(`recurrent.py`, `generic.py`), the kernels read it; the arrays stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types

from dyneval.kernels.compiling import Number, intrinsic, jit

Record = Any  # one of those below, seen by numba

# the kernels that those of a segment call, by address
KERNELS = ("project", "back", "move", "learn", "embed", "score", "learn_output", "learn_embedding")


@cache
def weight(number: Number) -> np.dtype[Any]:
    """Return the record of one weight matrix and the scalars of its rule (see `updates.py`)."""
    addresses = [(name, np.int64) for name in ("theta", "prior", "rms")]
    sizes = [(name, np.int64) for name in ("rows", "columns", "reads")]
    rates = [(name, number) for name in ("one", "plain", "scaled", "epsilon", "decay", "norm")]
    return np.dtype([*addresses, *sizes, *rates], align=True)


@cache
def layer(number: Number) -> np.dtype[Any]:
    """Return the record of one recurrent layer: its weights, and where its segment is kept."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_mx", "weight_mh")
    sizes = [(name, np.int64) for name in ("inputs", "units")]
    kept = ("x", "x_error", "gates", "cells", "hidden", "error", "later", "carried")
    multiplied = ("factor", "product", "m", "factor_error", "product_error")
    return np.dtype(
        [
            *((name, weight(number)) for name in names),
            *sizes,
            *((name, np.int64) for name in (*kept, *multiplied)),
            ("one", number),
        ],
        align=True,
    )


@cache
def segment(number: Number) -> np.dtype[Any]:
    """Return the record of a segment: read tokens [start, start + count), learn from [0, count)."""
    weights = [(name, weight(number)) for name in ("embedding", "output", "output_bias")]
    sizes = ("threads", "size", "start", "count", "room", "depth", "tied", "step", "scored")
    places = (
        "sync",
        "layers",
        "tokens",
        "targets",
        "current",
        "inputs",
        "input_error",
        "scores",
        "partial",
        "ones",
    )
    return np.dtype(
        [
            *weights,
            *((name, np.int64) for name in (*sizes, *places, *KERNELS)),
            ("one", number),
        ],
        align=True,
    )


@cache
def product(number: Number) -> np.dtype[Any]:
    """Return the record of one matrix and `count` inputs x, or gradients d of its outputs."""
    sizes = ("threads", "size", "rows", "columns", "count", "room", "backwards")
    places = ("sync", "theta", "x", "y", "partial", "project", "back")
    return np.dtype(
        [*((name, np.int64) for name in (*sizes, *places)), ("one", number)], align=True
    )


@cache
def job(number: Number) -> np.dtype[Any]:
    """Return the record of one update: DᵀX of `count` tokens, or row i of X to row tokens[i]."""
    fields = ("reads", "d", "d_width", "x", "x_width", "count", "tokens")
    return np.dtype(
        [("weight", weight(number)), *((name, np.int64) for name in fields), ("one", number)],
        align=True,
    )


@cache
def step(number: Number) -> np.dtype[Any]:
    """Return the record of the updates of a whole model."""
    fields = ("threads", "size", "sync", "jobs", "count", "ones", "move")
    return np.dtype([*((name, np.int64) for name in fields), ("one", number)], align=True)


def width(columns: int, size: int) -> int:
    """Return how far apart rows of so many columns are kept: an odd number of cache lines.

    A column of them then spreads over the whole cache. Rows of 512 numbers next to each other
    would share a few places of it, and push each other out.
    """
    return (-(-columns * size // 64) | 1) * 64 // size


_width = jit(width)


@intrinsic
def _integers(typing: Any, address: Any) -> Any:
    return _as_pointer(types.CPointer(types.int64), address)


@intrinsic
def _layers(typing: Any, address: Any, one: Any) -> Any:
    return _as_pointer(types.CPointer(_record(layer, one)), address, one)


@intrinsic
def _jobs(typing: Any, address: Any, one: Any) -> Any:
    return _as_pointer(types.CPointer(_record(job, one)), address, one)


def _record(of: Callable[[Number], np.dtype[Any]], one: types.Float) -> Any:
    return numba.from_dtype(of(np.float32 if one.bitwidth == 32 else np.float64))


def _as_pointer(kind: types.CPointer, *arguments: Any) -> Any:
    """Return how numba is to take an address for a pointer."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(kind))

    return kind(*arguments), generate


@jit
def only(pointer: Any) -> Record:
    """Return the record at a pointer."""
    return numba.carray(pointer, (1,))[0]


@jit
def integers(address: int, count: int) -> Any:
    """Return the array of integers at an address."""
    return numba.carray(_integers(address), (count,))


@jit
def layers(plan: Record) -> Any:
    """Return the records of a segment's layers."""
    return numba.carray(_layers(plan.layers, plan.one), (plan.depth,))


@jit
def jobs(plan: Record) -> Any:
    """Return the records of a step's updates."""
    return numba.carray(_jobs(plan.jobs, plan.one), (plan.count,))


@jit
def at(plan: Record, place: int, row: int, width: int) -> int:
    """Return the address of a row, each being `width` numbers after the one before."""
    address: int = place + row * width * plan.size
    return address


@jit
def padded(plan: Record, columns: int) -> int:
    """Return the width of rows with so many columns in the arrays of a segment."""
    return _width(columns, plan.size)
