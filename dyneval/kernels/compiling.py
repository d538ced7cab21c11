"""Compiling: from functions in numba's Python to machine code that is kept on disk.

A kernel is a C function. Kernels call each other by address (`call`), not by name: so each is
compiled once, on its own, for a precision, and is found in numba's cache from then on.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import cgutils, types

Function = TypeVar("Function", bound=Callable[..., Any])
Number = Any  # np.float32 or np.float64
Argument = Any  # int, PLACE, or what makes a record type of a precision

PLACE = "place"  # the address of numbers
_OPTIONS = {"error_model": "numpy"}  # divisions are not checked for zero
_PROCESS = secrets.token_hex(8)
_PATIENCE = 2.0  # seconds; what is in the cache is loaded in less


def intrinsic(function: Callable[..., Any]) -> Any:
    """Let kernels use what a function emits: it returns a signature and a way to generate code."""
    return extending.intrinsic(prefer_literal=True)(function)


def jit(function: Function) -> Function:
    """Let kernels call a function; it is compiled as a part of each.

    Its copy in a kernel has a name that holds numbers which every process counts anew. Two kernels
    from the cache, compiled in two processes, could so have one name for two functions, of which
    only one would be linked: a mark of the process keeps them apart.
    """
    marked = FunctionType(function.__code__, function.__globals__, function.__name__)
    marked.__qualname__ = f"{function.__qualname__}_{_PROCESS}"
    marked.__module__, marked.__doc__ = function.__module__, function.__doc__
    compiled: Function = numba.njit(marked, **_OPTIONS)
    return compiled


class Kernel:
    """A function to compile, and the types of its arguments."""

    def __init__(self, function: FunctionType, arguments: tuple[Argument, ...]) -> None:
        self.name = function.__name__
        self._function, self._arguments = function, arguments

    def address(self, number: Number) -> int:
        """Return where the machine code for a precision is."""
        address: int = self.compiled(number).address
        return address

    @cache  # noqa: B019 (there are as many as there are functions)
    def compiled(self, number: Number) -> Any:
        """Return the machine code for a precision.

        Raises a RuntimeError where numba finds no folder to keep it in.
        """
        function = self._function
        named = FunctionType(function.__code__, function.__globals__, self.name)
        # numba would not see that a function called by this one has changed
        named.__qualname__ = f"{self.name}_{number.__name__}_{_digest()}"
        named.__module__ = function.__module__
        signature = numba.void(*(self._type(argument, number) for argument in self._arguments))
        try:
            return numba.cfunc(signature, cache=True, **_OPTIONS)(named)
        except (pickle.UnpicklingError, EOFError):  # what is in the cache was cut off
            return numba.cfunc(signature, **_OPTIONS)(named)

    @staticmethod
    def _type(argument: Argument, number: Number) -> Any:
        if argument is int:
            return types.int64
        kind = number if argument == PLACE else argument(number)
        return types.CPointer(numba.from_dtype(np.dtype(kind)))


def kernel(*arguments: Argument) -> Callable[[Callable[..., None]], Kernel]:
    """Make a kernel of a function with arguments of these types."""

    def decorate(function: Any) -> Kernel:
        return Kernel(function, arguments)

    return decorate


@intrinsic
def call(typing: Any, address: Any, arguments: Any) -> Any:
    """Call the kernel at an address with a tuple of integers, addresses and records."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        integer = ir.IntType(64)
        values = [
            builder.ptrtoint(value, integer)
            if isinstance(kind, types.Record)
            else context.cast(builder, value, kind, types.int64)
            for kind, value in zip(arguments, cgutils.unpack_tuple(builder, given[1]), strict=True)
        ]
        function = ir.FunctionType(ir.VoidType(), [integer] * len(values))
        builder.call(builder.inttoptr(given[0], function.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


@cache
def _digest() -> str:
    """Return a hash of the source of all kernels."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def announced() -> Iterator[None]:
    """Say that it is compiling, if it takes long enough to wonder."""
    message = "compiling the fused kernels; later runs find them in numba's cache"
    timer = threading.Timer(_PATIENCE, logging.getLogger(__name__).warning, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
