"""Batched: B streams' adapted weights stacked, so that one product serves all streams.

What a target leaves as it was is shared by all of them. Rows of unequal length are read together
as far as the shortest goes, then those that are left, and so on: each is read as it would be alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dyneval.adapted import Uses, stacked
from dyneval.gradient_stats import Prior
from dyneval.models import own_copy
from dyneval.reading import Categorical, Reader, concatenate, evaluating, leaves, tree
from dyneval.rules import Rule


class Batched:
    """An `engines.Streams` with autograd, for a module that `adapted.stacked` can read."""

    def __init__(self, module: Any, rule: Rule, priors: Mapping[str, Prior], count: int) -> None:
        self.count = count
        self._priors = priors
        weights = dict(module.named_parameters())
        self._device = next(iter(weights.values())).device
        same = {id(weight): weight for weight in weights.values()}
        self._module = evaluating(own_copy(module, same))
        self._amounts = {
            name: (rule.gain(priors[name]), rule.pull(priors[name])) for name in weights
        }
        self._theta = {  # (B, …) each
            name: weight.detach().expand(count, *weight.shape).clone().requires_grad_()
            for name, weight in weights.items()
        }
        self._reader = Reader(None, self._device, self._reading)
        self._open: list[Categorical] = []  # with their graphs
        self._uses: dict[tuple[int, ...], Uses] = {}  # of the rows that were read together

    def _reading(self, rows: list[int]) -> Any:
        """Return what some rows are read with."""
        whole = rows == list(range(self.count))
        theta = self._theta if whole else {name: t[rows] for name, t in self._theta.items()}
        return stacked(self._module, theta, self._uses.setdefault(tuple(rows), []))

    @torch.enable_grad()  # whatever the caller has set: learning needs the graph
    def predict(self, tokens: Tensor, lengths: list[int]) -> Categorical:
        """(B, T) tokens -> what follows each, without a graph; NaN where there is none."""
        columns = pairwise(sorted({0, *lengths}))
        whole = concatenate([self._reader.read(tokens[:, a:b]) for a, b in columns])
        if (missing := tokens.shape[1] - max(lengths)) > 0:
            padding = (0, 0, 0, missing)
            whole = Categorical(
                F.pad(whole.log_probs, padding, value=torch.nan),
                F.pad(whole.hidden, padding, value=torch.nan),
            )
        self._open.append(whole)
        return whole.detach()

    @torch.enable_grad()
    def learn(self, targets: Tensor, counts: list[int]) -> None:
        """(B, n) what followed: one step on each row's mean nats; the segment ends here."""
        rows = [row for row, count in enumerate(counts) if count]
        if rows:
            nats = concatenate(self._open).nats(targets).nan_to_num(0)  # (B, n)
            each = torch.tensor(counts, device=self._device).clamp(min=1).to(nats)
            gradients = torch.autograd.grad(
                (nats.sum(1) / each).sum(), list(self._theta.values()), allow_unused=True
            )
            with torch.no_grad():
                self._move(rows, self._collected(gradients))
        self._cut()

    def _collected(self, gradients: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Return the gradients (B, …) by name: what autograd has, and the products of all uses."""
        found = {
            name: gradient
            for name, gradient in zip(self._theta, gradients, strict=True)
            if gradient is not None
        }
        for rows, uses in self._uses.items():
            for name in dict.fromkeys(name for name, _, _ in uses):
                mine = [(x, d) for used, x, d in uses if used == name]
                x, d = (torch.cat(parts, 1) for parts in zip(*mine, strict=True))
                product = torch.bmm(d.mT, x)
                if len(rows) == self.count and name not in found:
                    found[name] = product
                else:
                    found.setdefault(name, torch.zeros_like(self._theta[name]))
                    found[name][list(rows)] += product
        return found

    def _move(self, rows: list[int], gradients: dict[str, Tensor]) -> None:
        """Take a step: θ_l ← θ_l − gain ⊙ ∇L + pull ⊙ (θ_g − θ_l) for some rows."""
        for name, theta in self._theta.items():
            gain, pull = self._amounts[name]
            gradient, trained = gradients.get(name), self._priors[name].theta
            part = theta.detach()
            if len(rows) != self.count:
                part = part[rows]
                gradient = None if gradient is None else gradient[rows]
            if isinstance(pull, Tensor) or pull:
                part.lerp_(trained.expand_as(part), pull)
            if gradient is not None:
                if isinstance(gain, Tensor):
                    part.addcmul_(gradient, gain, value=-1)
                else:
                    part.sub_(gradient, alpha=gain)
            if len(rows) != self.count:
                theta.detach()[rows] = part

    def _cut(self) -> None:
        """End the segment."""
        self._open.clear()
        self._uses.clear()
        self._reader.cut()

    @torch.no_grad()
    def reset(self, rows: list[int], *, weights: bool, state: bool) -> None:
        """Let some rows go back to the trained weights, the zero state, or both."""
        self._cut()
        if state:
            self._reader.reset(rows)
        if weights:
            for name, theta in self._theta.items():
                theta[rows] = self._priors[name].theta

    def weights(self, row: int, as_read: bool = False) -> dict[str, Tensor]:
        """Return θ_l of a row by name, as it is now; it is what is read with."""
        return {name: theta.detach()[row] for name, theta in self._theta.items()}

    def state_dict(self, row: int) -> dict[str, Tensor]:
        """Return `weights.NAME` and `state.PATH` of a row."""
        weights = {f"weights.{name}": theta.clone() for name, theta in self.weights(row).items()}
        state = leaves(self._reader.split().get(row), "state")
        return weights | {path: leaf.clone() for path, leaf in state.items()}

    @torch.no_grad()
    def load_state_dict(self, row: int, state: Mapping[str, Tensor]) -> None:
        """Let a row go on where `state_dict` was taken."""
        self.reset([row], weights=False, state=True)
        for name, theta in self._theta.items():
            theta[row] = state[f"weights.{name}"]
        found = tree(state, "state", self._device)
        others = [(rows, kept) for rows, kept in self._reader.states if rows != [row]]
        self._reader.states = [*others, ([row], found)]


def reads(module: Any) -> bool:
    """Return whether a module is read in one go as it is by rows: two of them are tried."""
    names = {name: weight.detach() for name, weight in module.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    theta = {
        name: weight
        + torch.randn(2, *weight.shape, generator=generator, dtype=torch.float64).to(weight) / 16
        for name, weight in names.items()
    }
    tokens = torch.zeros(2, 2, dtype=torch.long, device=next(iter(names.values())).device)
    own = evaluating(own_copy(module, {id(weight): weight for weight in module.parameters()}))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")  # a loop over the rows is what vmap warns of
            found, _ = _read(own, theta, tokens)
            rows = [
                _read(own, {name: t[k : k + 1] for name, t in theta.items()}, tokens[k : k + 1])[0]
                for k in range(2)
            ]
            return torch.allclose(found, torch.cat(rows), rtol=1e-3, atol=1e-4)
    except Exception:  # whatever a module of one's own cannot do so: it is read row by row then
        return False


def _read(module: Any, theta: Mapping[str, Tensor], tokens: Tensor) -> tuple[Tensor, Any]:
    reading = stacked(module, theta, [])
    hidden, state = reading.hidden(tokens[:, :1], None)
    after, state = reading.hidden(tokens[:, 1:], state)
    return torch.log_softmax(reading.logits(torch.cat([hidden, after], 1)), -1), state
