"""Threads: how the threads of a kernel start together, share rows, and wait for each other.

A segment has dozens of points where all threads must meet, so a kernel is started once and meets
at barriers of its own, which take less than a microsecond. The threads are torch's: the same
pool, so that the two never compete for a core, and the same number, `torch.get_num_threads()`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from numba.core import cgutils, types

from dyneval.kernels.compiling import intrinsic, jit
from dyneval.kernels.plans import Record, integers

SYNC = 48  # integers that a barrier needs
_TICKETS, _ARRIVED, _ROUND = 0, 16, 32  # of these, on cache lines of their own
_SPINS = 2000  # then let others run: the thread waited for may need this very core

_ONE_AT_A_TIME = threading.Lock()
_yield = types.ExternalFunction(
    "SwitchToThread" if os.name == "nt" else "sched_yield", types.int32()
)


@intrinsic
def _add(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to an integer in one indivisible step; return what it was."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        place = builder.gep(
            context.make_array(array)(context, builder, arguments[0]).data, [arguments[1]]
        )
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def _read(typing: Any, array: Any, index: Any) -> Any:
    """Return an integer that another thread may be changing."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        place = builder.gep(
            context.make_array(array)(context, builder, arguments[0]).data, [arguments[1]]
        )
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(array, types.int64), generate


@jit
def enter(plan: Record) -> int:
    """Return the number of this thread, from 0."""
    if plan.threads == 1:
        return 0
    ticket: int = _add(integers(plan.sync, SYNC), _TICKETS, 1)
    return ticket


@jit
def meet(plan: Record) -> None:
    """Wait until all threads are here."""
    if plan.threads == 1:
        return
    sync = integers(plan.sync, SYNC)
    now = _read(sync, _ROUND)
    if _add(sync, _ARRIVED, 1) == plan.threads - 1:
        _add(sync, _ARRIVED, -plan.threads)
        _add(sync, _ROUND, 1)
        return
    spins = 0
    while _read(sync, _ROUND) == now:
        spins += 1
        if spins > _SPINS:
            _yield()


@jit
def share(total: int, thread: int, threads: int) -> tuple[int, int]:
    """Return the range of a thread: whole cache lines, so that no two write to the same one."""
    each = ((total + threads - 1) // threads + 15) // 16 * 16
    first = min(each * thread, total)
    return first, min(first + each, total)


def run(function: Any, pointer: int, threads: int) -> None:
    """Run a kernel on the plan at an address, with as many threads as the plan names."""
    if threads == 1:
        function.ctypes(pointer)
        return
    start = _torch_threads(threads)
    if start is not None:
        start(function.address, pointer, threads, 0)
        return
    with _ONE_AT_A_TIME:  # or two kernels would each wait for threads that the other has
        pool = _own_threads(threads)
        others = [pool.submit(function.ctypes, pointer) for _ in range(threads - 1)]
        function.ctypes(pointer)
        for other in others:
            other.result()


@cache
def _torch_threads(threads: int) -> Callable[..., None] | None:
    """Return what starts a function on so many of torch's own threads, if it can be found."""
    for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"):
        library = ctypes.CDLL(str(path))
        try:
            # of the OpenMP library that torch is linked with, whichever that is
            start, dynamic = library.GOMP_parallel, library.omp_get_dynamic
        except AttributeError:
            continue
        start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        start.restype = None
        # fewer than asked for would wait for each other for ever
        if not dynamic() and _started(start, threads) == threads:
            found: Callable[..., None] = start
            return found
    return None


def _started(start: Callable[..., None], threads: int) -> int:
    """Return how many threads there are when so many are asked for."""
    calls: list[None] = []
    job = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: calls.append(None))
    start(ctypes.cast(job, ctypes.c_void_p), None, threads, 0)
    return len(calls)


@cache
def _own_threads(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1)
