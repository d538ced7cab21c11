"""Linear maps of any model: the products of a segment that autograd runs, and its updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyneval.kernels import plans, products, threads
from dyneval.kernels.capture import Weight, multiply
from dyneval.kernels.compiling import call, kernel
from dyneval.kernels.network import collect, partial
from dyneval.kernels.plans import at, integers, jobs, only, padded, product, step
from dyneval.kernels.threads import enter, meet, share

_FEW = 32  # inputs at once; for more, torch's own products are as fast
_WORTH = 65536  # weights for each thread more


@kernel(product)
def project_all(pointer: Any) -> None:
    """Y += X Wᵀ, in all threads."""
    plan = only(pointer)
    columns, rows = plan.columns, plan.rows
    first, last = share(rows, enter(plan), plan.threads)
    call(
        plan.project,
        (plan.theta, columns, first, last, plan.x, columns, 0, plan.count)
        + (plan.y, rows, plan.backwards),
    )


@kernel(product)
def back_all(pointer: Any) -> None:
    """Y = X W, in all threads."""
    plan = only(pointer)
    thread = enter(plan)
    columns, rows, count = plan.columns, plan.rows, plan.count
    first, last = share(rows, thread, plan.threads)
    part = partial(plan, 0, thread, count, columns)
    width = padded(plan, columns)
    call(
        plan.back,
        (plan.theta, columns, first, last, plan.x, rows, 0, count) + (part, width, plan.backwards),
    )
    meet(plan)
    collect(plan, 0, thread, count, columns, plan.y, columns)


@kernel(step)
def move_all(pointer: Any) -> None:
    """Do all updates of a step, each in all threads."""
    plan = only(pointer)
    thread = enter(plan)
    every = jobs(plan)
    for k in range(plan.count):
        one = every[k]
        weight = one.weight
        rows, columns, count = weight.rows, weight.columns, one.count
        if one.tokens:
            tokens = integers(one.tokens, count)
            first, last = share(rows, thread, plan.threads)
            for i in range(count):
                if first <= tokens[i] < last:
                    x = at(plan, one.x, i, one.x_width)
                    call(
                        plan.move,
                        (weight, one.reads, tokens[i], tokens[i] + 1, 0, columns)
                        + (plan.ones, 0, x, 0, 1),
                    )
        elif rows == 1:
            first, last = share(columns, thread, plan.threads)
            call(
                plan.move,
                (weight, one.reads, 0, 1, first, last)
                + (one.d, one.d_width, one.x, one.x_width, count),
            )
        else:
            first, last = share(rows, thread, plan.threads)
            call(
                plan.move,
                (weight, one.reads, first, last, 0, columns)
                + (one.d, one.d_width, one.x, one.x_width, count),
            )
        meet(plan)  # the next one may be of the same weight


class Products:
    """A `capture.Product`: for a few rows of X by the kernels, in all threads."""

    def __init__(self, dtype: torch.dtype) -> None:
        number = np.float32 if dtype == torch.float32 else np.float64
        self._plan = np.zeros(1, plans.product(number))
        self._sync = np.zeros(threads.SYNC, np.int64)
        self._partial: NDArray[Any] = np.zeros(0, number)
        self._project, self._back = project_all.compiled(number), back_all.compiled(number)
        plan = self._plan
        self._address, self._size = plan.ctypes.data, np.dtype(number).itemsize
        plan["one"], plan["size"] = 1, self._size
        plan["sync"] = self._sync.ctypes.data
        plan["project"] = products.project.address(number)
        plan["back"] = products.back.address(number)

    def __call__(self, x: Tensor, weight: Weight, turned: bool, addend: Tensor | None) -> Tensor:
        """(n, C) X -> (n, R) X Wᵀ + addend; or turned, (n, R) X -> (n, C) X W + addend."""
        if not 0 < x.shape[0] <= _FEW:
            return multiply(x, weight, turned, addend)
        w = weight.parameter.detach()
        self._plan["backwards"] = weight.passes % 2
        weight.passes += 1
        y = self._run(self._back if turned else self._project, x, w, w.shape[turned])
        return y if addend is None else y + addend

    def _run(self, kernel: Any, x: Tensor, weight: Tensor, columns: int) -> Tensor:
        plan, x, (rows, inner) = self._plan, x.contiguous(), weight.shape
        few = x.shape[0]
        y = x.new_zeros(few, columns)
        count = min(torch.get_num_threads(), 1 + rows * inner // _WORTH)
        room = few * plans.width(inner, self._size)
        if self._partial.size < 2 * count * room:
            self._partial = np.zeros(2 * count * room, self._partial.dtype)
            plan["partial"] = self._partial.ctypes.data
        plan["threads"], plan["room"], plan["count"] = count, room, few
        plan["rows"], plan["columns"], plan["theta"] = rows, inner, weight.data_ptr()
        plan["x"], plan["y"] = x.data_ptr(), y.data_ptr()
        self._sync.fill(0)
        threads.run(kernel, self._address, count)
        return y
