"""The generic route on a CPU: autograd runs any model as it is, the kernels carry out the updates.

The gradient of a linear map's matrix is never there as a whole: from its inputs X and the gradients
D of its outputs (`capture.py`) the weight is moved by DᵀX in one pass. What autograd has a gradient
of goes through the same kernel, as does a weight that was not used and feels its pull alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyneval.gradient_stats import Prior
from dyneval.kernels import plans, threads, updates
from dyneval.kernels.capture import Weight
from dyneval.kernels.linear import Products, move_all
from dyneval.kernels.memory import copies, prefer_large_pages
from dyneval.kernels.rates import PRIOR, RMS, describe
from dyneval.kernels.route import Route, known
from dyneval.rules import Rule


class Generic(Route):
    """An `engines.Engine` for any model on a CPU."""

    def __init__(self, model: Any, rule: Rule, priors: Mapping[str, Prior]) -> None:
        numbers = known(rule)
        self._reads = numbers.reads
        theirs = dict(model.named_parameters())
        theta = copies(theirs)
        prefer_large_pages(read for name in theirs for read in numbers.tensors(priors[name]))
        dtype = next(iter(theta.values())).dtype
        super().__init__(model, theta, priors, Products(dtype))
        number = np.float32 if dtype == torch.float32 else np.float64
        self._job = plans.job(number)
        self._records = np.zeros(len(self._weights), plans.weight(number))
        for record, weight in zip(self._records, self._weights, strict=True):
            describe(record, weight.parameter, priors[weight.name], numbers)
        self._ones = torch.ones(int(self._records["rows"].max()), dtype=dtype)
        self._zeros = torch.zeros(int(self._records["columns"].max()), dtype=dtype)
        self._sync = np.zeros(threads.SYNC, np.int64)
        self._plan = np.zeros(1, plans.step(number))
        self._plan["one"], self._plan["size"] = 1, np.dtype(number).itemsize
        self._plan["sync"], self._plan["ones"] = self._sync.ctypes.data, self._ones.data_ptr()
        self._plan["move"] = updates.move.address(number)
        self._move_all = move_all.compiled(number)

    def _move(self, gradients: Sequence[Tensor | None]) -> None:
        kept: list[Tensor] = []  # until the kernels are done with them
        jobs = [
            job
            for record, weight, gradient in zip(
                self._records, self._weights, gradients, strict=True
            )
            for job in self._jobs(record, weight, gradient, kept)
        ]
        every = np.zeros(len(jobs), self._job)
        for place, job in enumerate(jobs):
            every[place] = job[0]
        count = torch.get_num_threads()
        self._plan["threads"] = count
        self._plan["jobs"], self._plan["count"] = every.ctypes.data, len(every)
        self._sync[:] = 0
        threads.run(self._move_all, self._plan.ctypes.data, count)

    def _jobs(
        self, record: NDArray[Any], weight: Weight, gradient: Tensor | None, kept: list[Tensor]
    ) -> Iterator[NDArray[Any]]:
        """Yield what there is to do for one weight; the first of it has the pull as well."""
        reads = self._reads
        if weight.maps:
            x, d = (_beside([use[k] for use in weight.maps], kept) for k in (0, 1))
            yield self._one(record, reads, x, d, len(x))
            reads &= RMS
        if gradient is not None:
            flat = gradient.to_dense().reshape(1, -1)
            kept.append(flat)
            job = self._one(record, reads, flat, self._ones[:1, None], 1)
            job["weight"]["rows"], job["weight"]["columns"] = 1, flat.numel()
            yield job
            reads &= RMS
        if reads & PRIOR:
            yield self._one(record, reads, self._zeros[None], self._ones[None], 1)
        if weight.lookups:
            tokens = torch.cat([tokens for tokens, _ in weight.lookups])
            x = _beside([d for _, d in weight.lookups], kept)
            kept.append(tokens)
            job = self._one(record, reads & RMS, x, self._ones[None], len(x))
            job["tokens"] = tokens.data_ptr()
            yield job

    def _one(
        self, record: NDArray[Any], reads: int, x: Tensor, d: Tensor, count: int
    ) -> NDArray[Any]:
        job = np.zeros(1, self._job)
        job["weight"], job["reads"], job["count"] = record, reads, count
        job["x"], job["x_width"] = x.data_ptr(), x.stride(0)
        job["d"], job["d_width"] = d.data_ptr(), d.stride(0)
        return job


def _beside(parts: list[Tensor], kept: list[Tensor]) -> Tensor:
    """Return the rows of all parts, as far apart as the kernels like them (`plans.width`)."""
    first = parts[0]
    rows, columns = sum(part.shape[0] for part in parts), first.shape[1]
    whole = first.new_empty(rows, plans.width(columns, first.element_size()))[:, :columns]
    kept.append(torch.cat(parts, out=whole))
    return whole
