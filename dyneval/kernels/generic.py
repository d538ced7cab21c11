"""The generic route: autograd runs any model as it is, the kernels carry out the updates.

The gradient of a linear map's matrix is never there as a whole: from its inputs X and the gradients
D of its outputs (`capture.py`) the weight is moved by DᵀX in one pass. What autograd has a gradient
of goes through the same kernel, as does a weight that was not used and feels its pull alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dyneval.gradient_stats import Prior
from dyneval.kernels import plans, threads, updates
from dyneval.kernels.capture import Capture, Weight
from dyneval.kernels.linear import move_all
from dyneval.kernels.memory import copies, prefer_large_pages
from dyneval.kernels.plans import PRIOR, RMS
from dyneval.kernels.rates import describe, rates
from dyneval.reading import Categorical, Reader, concatenate, leaves, tree
from dyneval.rules import Rule


class Generic:
    """An `engines.Engine` for any model on a CPU."""

    def __init__(self, model: Any, rule: Rule, priors: Mapping[str, Prior]) -> None:
        numbers = rates(rule)
        if numbers is None:
            raise ValueError(f"the kernels do not know all terms of {rule}")
        self._priors, self._reads = priors, numbers.reads
        theirs = dict(model.named_parameters())
        self._theta = copies(theirs)
        prefer_large_pages(read for name in theirs for read in numbers.tensors(priors[name]))
        memo = {id(theirs[name]): nn.Parameter(theta) for name, theta in self._theta.items()}
        own = copy.deepcopy(model, memo).eval()
        self._weights = [Weight(name, parameter) for name, parameter in own.named_parameters()]
        dtype = next(iter(self._theta.values())).dtype
        number = np.float32 if dtype == torch.float32 else np.float64
        self._job = plans.job(number)
        self._records = np.zeros(len(self._weights), plans.weight(number))
        for record, weight in zip(self._records, self._weights, strict=True):
            describe(record, weight.parameter, priors[weight.name], numbers)
        self._capture = Capture(self._weights, dtype)
        self._reader = Reader(own)
        self._open: list[Categorical] = []  # with their graphs
        self._ones = torch.ones(int(self._records["rows"].max()), dtype=dtype)
        self._zeros = torch.zeros(int(self._records["columns"].max()), dtype=dtype)
        self._sync = np.zeros(threads.SYNC, np.int64)
        self._step = np.zeros(1, plans.step(number))
        self._step["one"], self._step["size"] = 1, np.dtype(number).itemsize
        self._step["sync"], self._step["ones"] = self._sync.ctypes.data, self._ones.data_ptr()
        self._step["move"] = updates.move.address(number)
        self._move_all = move_all.compiled(number)

    @torch.enable_grad()  # whatever the caller has set: learning needs the graph
    def predict(self, tokens: Tensor) -> Categorical:
        """(1, T) tokens -> what follows each, by the weights of this segment."""
        with self._capture:
            self._open.append(self._reader.read(tokens))
        return self._open[-1].detach()

    @torch.enable_grad()
    def learn(self, targets: Tensor) -> None:
        """(1, n) what followed -> one step of the rule on its mean nats."""
        if targets.shape[1]:
            whole = concatenate(self._open)
            count = targets.shape[1]
            read = Categorical(whole.log_probs[:, :count], whole.hidden[:, :count])
            self._learn(read.nats(targets).mean())
        self._cut()

    def _cut(self) -> None:
        """End the segment."""
        self._open.clear()
        self._reader.cut()
        for weight in self._weights:
            weight.forget()

    def _learn(self, loss: Tensor) -> None:
        parameters = [weight.parameter for weight in self._weights]
        _, *gradients = torch.autograd.grad(
            loss, [self._capture.anchor, *parameters], allow_unused=True
        )
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
        self._step["threads"] = count
        self._step["jobs"], self._step["count"] = every.ctypes.data, len(every)
        self._sync[:] = 0
        threads.run(self._move_all, self._step.ctypes.data, count)

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

    @torch.no_grad()
    def reset(self, *, weights: bool, state: bool) -> None:
        """Drop the open segment; go back to the trained weights, the zero state, or both."""
        self._cut()
        if state:
            self._reader.reset([0])
        if weights:
            for name, theta in self._theta.items():
                theta.copy_(self._priors[name].theta)

    def weights(self) -> dict[str, Tensor]:
        """Return θ_l by name, as it is now."""
        return dict(self._theta)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the adapted weights and the hidden state."""
        weights = {f"weights.{name}": theta.clone() for name, theta in self._theta.items()}
        state = leaves(self._reader.split().get(0), "state")
        return weights | {path: leaf.clone() for path, leaf in state.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self.reset(weights=False, state=True)
        for name, theta in self._theta.items():
            theta.copy_(state[f"weights.{name}"])
        self._reader.states = [([0], tree(state, "state"))]


def _beside(parts: list[Tensor], kept: list[Tensor]) -> Tensor:
    """Return the rows of all parts, as far apart as the kernels like them (`plans.width`)."""
    first = parts[0]
    rows, columns = sum(part.shape[0] for part in parts), first.shape[1]
    whole = first.new_empty(rows, plans.width(columns, first.element_size()))[:, :columns]
    kept.append(torch.cat(parts, out=whole))
    return whole
