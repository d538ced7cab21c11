"""Routes: autograd runs any model as it is, and what it leaves of the gradients moves the weights.

A captured matrix has no gradient: its uses are kept in `Weight.maps` and `Weight.lookups`, and
`_move` makes the update of them and of the gradients that autograd has. `generic.py` does so on the
CPU, `cuda.py` on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dyneval.engines import Autograd
from dyneval.gradient_stats import Prior
from dyneval.kernels.capture import Capture, Product, Weight
from dyneval.kernels.rates import Rates, rates
from dyneval.models import own_copy
from dyneval.reading import Categorical
from dyneval.rules import Rule


class Route(Autograd):
    """What the engines for any model have in common; `theta` are copies of its weights."""

    def __init__(
        self,
        model: Any,
        theta: dict[str, Tensor],
        priors: Mapping[str, Prior],
        product: Product,
    ) -> None:
        theirs = dict(model.named_parameters())
        memo = {id(theirs[name]): nn.Parameter(weight) for name, weight in theta.items()}
        super().__init__(own_copy(model, memo), priors)
        self._weights = [Weight(name, weight) for name, weight in self._parameters.items()]
        self._capture = Capture(self._weights, product)

    def _move(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step, given the gradient of each weight as far as autograd has one."""
        raise NotImplementedError

    def predict(self, tokens: Tensor) -> Categorical:
        """(1, T) tokens -> what follows each, by the weights of this segment."""
        prediction: Categorical = self._capture.run(super().predict, tokens)
        return prediction

    def _step(self, loss: Tensor) -> None:
        sources = [self._capture.anchor, *self._parameters.values()]
        _, *gradients = torch.autograd.grad(loss, sources, allow_unused=True)
        with torch.no_grad():
            self._move(gradients)

    def _cut(self) -> None:
        """End the segment."""
        super()._cut()
        for weight in self._weights:
            weight.forget()


def known(rule: Rule) -> Rates:
    """Return the scalars of a rule, or refuse it."""
    numbers = rates(rule)
    if numbers is None:
        raise ValueError(f"the kernels do not know all terms of {rule}")
    return numbers
