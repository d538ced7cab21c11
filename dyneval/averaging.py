"""Averaging: the mean of a model's weights over the steps of SGD, in place of smaller steps.

Polyak's average, as NT-ASGD of the AWD-LSTM takes it: θ̄_k = θ̄_{k−1} + (θ_k − θ̄_{k−1}) / k over
the steps since it began, while the learning rate stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """The mean of a model's weights since `begin`; without it there is none."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = dict(model.named_parameters())
        self._means: dict[str, Tensor] = {}
        self.count = 0  # steps that the mean is over

    @property
    def on(self) -> bool:
        """Whether steps are averaged."""
        return bool(self._means)

    def begin(self) -> None:
        """Begin anew: the next step is the first of the mean."""
        self._means = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self.count = 0

    @torch.no_grad()
    def step(self) -> None:
        """Take a step's weights in."""
        if self.on:
            self.count += 1
            weights: list[Tensor] = list(self._weights.values())
            torch._foreach_lerp_(list(self._means.values()), weights, 1 / self.count)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the averaged weights meanwhile, if there are any."""
        if not self.count:
            yield
            return
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._write(self._means)
        try:
            yield
        finally:
            self._write(own)

    @torch.no_grad()
    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged weights by name; none before `begin`."""
        return dict(self._means)

    def load_state_dict(self, means: Mapping[str, Tensor], count: int) -> None:
        """Go on where `state_dict` was taken."""
        names = [name for name in self._weights if name in means]  # in the order of the weights
        self._means = {name: means[name].to(self._weights[name]) for name in names}
        self.count = count


def stuck(losses: Sequence[float], nonmonotone: int) -> bool:
    """Tell whether the last loss is above one of those that lie more than `nonmonotone` back.

    >>> stuck([5.0, 4.0, 4.1, 3.9, 4.2], 2), stuck([5.0, 4.0, 4.1, 3.9, 4.0], 2)
    (True, False)
    """
    before = losses[: -1 - nonmonotone]
    return bool(before) and losses[-1] > min(before)
