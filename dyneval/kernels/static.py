"""Reading only, by the same products as an engine's, so that what does not learn is equal to it.

`Forward` is the forward pass of the segment engine, `Captured` that of the generic route.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dyneval.kernels.capture import Capture, Weight
from dyneval.kernels.linear import Products
from dyneval.kernels.memory import prefer_large_pages
from dyneval.kernels.network import score_again
from dyneval.kernels.recurrent import Network


class Forward:
    """The `hidden` and `logits` of a model in eval mode, with its own weights; no graph.

    Several streams at once go to the model itself, whose products serve them all in one.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        # kept here, so that they stay where the records say
        self._theta = {name: theta.detach() for name, theta in model.named_parameters()}
        prefer_large_pages(self._theta.values())
        self._network = Network(model, self._theta)
        self._score = score_again.compiled(self._network.number)

    @torch.no_grad()
    def hidden(self, tokens: Tensor, state: Any = None, mix: Any = None) -> tuple[Tensor, Any]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        network = self._network
        if len(tokens) != 1 or tokens.shape[1] == 0 or mix is not None:
            found: tuple[Tensor, Any] = self.model.hidden(tokens, state, mix)
            return found
        depth, count = len(network.layers), tokens.shape[1]
        network.read_tokens = 0
        for k in range(depth):
            for part, name in enumerate(("hidden", "cells")):
                row = network.rows(name, k)[0]
                row[:] = 0 if state is None else state[k][part][0].numpy()
        network.read(tokens[0], scored=False)
        after = tuple(
            tuple(
                torch.from_numpy(network.rows(name, k)[count].copy())[None]
                for name in ("hidden", "cells")
            )
            for k in range(depth)
        )
        top = network.rows("hidden", depth - 1)[1 : count + 1]
        return torch.from_numpy(top.copy())[None], after

    @torch.no_grad()
    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""
        if len(h) != 1 or h.shape[1] == 0:
            found: Tensor = self.model.logits(h)
            return found
        return torch.from_numpy(self._network.logits(h[0].numpy(), self._score).copy())[None]


class Captured:
    """The `hidden` and `logits` of any model in eval mode; no graph."""

    def __init__(self, model: Any) -> None:
        self.model = model
        weights = [Weight(name, parameter) for name, parameter in model.named_parameters()]
        self._capture = Capture(weights, Products(weights[0].parameter.dtype))

    @torch.no_grad()
    def hidden(self, *arguments: Any, **named: Any) -> tuple[Tensor, Any]:
        """Return what the model does."""
        found: tuple[Tensor, Any] = self._capture.run(self.model.hidden, *arguments, **named)
        return found

    @torch.no_grad()
    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""
        found: Tensor = self._capture.run(self.model.logits, h)
        return found
