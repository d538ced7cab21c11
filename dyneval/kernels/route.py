"""Routes: autograd runs any model as it is, and what it leaves of the gradients moves the weights.

A captured matrix has no gradient: its uses are kept in `Weight.maps` and `Weight.lookups`, and
`_move` makes the update of them and of the gradients that autograd has. `generic.py` does so on the
CPU, `cuda.py` on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dyneval.gradient_stats import Prior
from dyneval.kernels.capture import Capture, Product, Weight
from dyneval.kernels.rates import Rates, rates
from dyneval.reading import Categorical, Reader, concatenate, evaluating, leaves, tree
from dyneval.rules import Rule


class Route:
    """What the engines for any model have in common; `theta` are copies of its weights."""

    def __init__(
        self,
        model: Any,
        theta: dict[str, Tensor],
        priors: Mapping[str, Prior],
        product: Product,
    ) -> None:
        self._priors, self._theta = priors, theta
        theirs = dict(model.named_parameters())
        memo = {id(theirs[name]): nn.Parameter(weight) for name, weight in theta.items()}
        own = evaluating(copy.deepcopy(model, memo))
        self._weights = [Weight(name, parameter) for name, parameter in own.named_parameters()]
        first = next(iter(theta.values()))
        self._device, self._dtype = first.device, first.dtype
        self._capture = Capture(self._weights, product)
        self._reader = Reader(own, self._device)
        self._open: list[Categorical] = []  # with their graphs

    def _move(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step, given the gradient of each weight as far as autograd has one."""
        raise NotImplementedError

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
            parameters = [weight.parameter for weight in self._weights]
            _, *gradients = torch.autograd.grad(
                read.nats(targets).mean(), [self._capture.anchor, *parameters], allow_unused=True
            )
            with torch.no_grad():
                self._move(gradients)
        self._cut()

    def _cut(self) -> None:
        """End the segment."""
        self._open.clear()
        self._reader.cut()
        for weight in self._weights:
            weight.forget()

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
        self._reader.states = [([0], tree(state, "state", self._device))]


def known(rule: Rule) -> Rates:
    """Return the scalars of a rule, or refuse it."""
    numbers = rates(rule)
    if numbers is None:
        raise ValueError(f"the kernels do not know all terms of {rule}")
    return numbers
