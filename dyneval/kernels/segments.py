"""The segment engine: the project's own models, forward, backward and update in one go.

The update happens within the backward pass, and no gradient of a matrix is ever stored; rows of
the input embedding that do not occur are left alone until they do (`updates.catch_up`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dyneval.gradient_stats import Prior
from dyneval.kernels.memory import copies, prefer_large_pages
from dyneval.kernels.network import bring_all_up
from dyneval.kernels.rates import rates
from dyneval.kernels.recurrent import Network
from dyneval.reading import Categorical
from dyneval.rules import Rule


class Segment:
    """An `engines.Engine` for the project's LSTM, AWD-LSTM and mLSTM on a CPU."""

    def __init__(self, model: Any, rule: Rule, priors: Mapping[str, Prior]) -> None:
        numbers = rates(rule)
        if numbers is None:
            raise ValueError(f"the kernels do not know all terms of {rule}")
        self._priors = priors
        self._theta = copies(dict(model.named_parameters()))
        prefer_large_pages(read for name in self._theta for read in numbers.tensors(priors[name]))
        self._network = Network(model, self._theta, numbers, priors)
        self._started = False  # whether there is a hidden state
        embedding = self._theta["embedding.weight"]
        # for each row of the embedding the step that it is at; -1: it is at θ_g, whatever the step
        self._current = np.full(len(embedding), -1, np.int64)
        if not torch.equal(embedding, priors["embedding.weight"].theta):
            self._current[:] = 0
        if not self._network.plan["tied"][0]:
            self._network.plan["current"] = self._current.ctypes.data
        self._bring_all_up = bring_all_up.compiled(self._network.number)

    def predict(self, tokens: Tensor) -> Categorical:
        """(1, T) tokens -> what follows each, by the weights of this segment."""
        network, start = self._network, self._network.read_tokens
        network.read(tokens[0])
        self._started = True
        top = network.rows("hidden", len(network.layers) - 1)
        hidden = top[start + 1 : network.read_tokens + 1].copy()
        scores = torch.from_numpy(network.rows("scores")[start : network.read_tokens])
        # torch's own, so that the digits are those of reading without learning
        log_probs = torch.log_softmax(scores[None], -1)
        scores.copy_(log_probs[0])
        return Categorical(log_probs, torch.from_numpy(hidden)[None])

    def learn(self, targets: Tensor) -> None:
        """(1, n) what followed -> one step of the rule on its mean nats."""
        if targets.shape[1]:
            self._network.learn(targets[0])
        self._network.cut()

    def reset(self, *, weights: bool, state: bool) -> None:
        """Drop the open segment; go back to the trained weights, the zero state, or both."""
        self._network.cut()
        if state:
            self._started = False
            for k in range(len(self._network.layers)):
                for name in ("hidden", "cells"):
                    self._network.rows(name, k)[0] = 0
        if weights:
            for name, theta in self._theta.items():
                theta.copy_(self._priors[name].theta)
            self._current[:] = -1

    def weights(self, as_read: bool = False) -> dict[str, Tensor]:
        """Return θ_l by name, as it is now; it is what is read with."""
        if self._network.plan["current"][0]:
            self._bring_all_up.ctypes(self._network.plan.ctypes.data)
        return dict(self._theta)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the adapted weights and the hidden state."""
        stored = {f"weights.{name}": theta.clone() for name, theta in self.weights().items()}
        for k in range(len(self._network.layers) if self._started else 0):
            for part, name in enumerate(("hidden", "cells")):
                row = self._network.rows(name, k)[self._network.read_tokens]
                stored[f"state.{k}.{part}"] = torch.from_numpy(row.copy())[None]
        return stored

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self.reset(weights=False, state=True)
        for name, theta in self._theta.items():
            theta.copy_(state[f"weights.{name}"])
        self._current[:] = int(self._network.plan["step"][0])
        self._started = "state.0.0" in state
        for k in range(len(self._network.layers) if self._started else 0):
            for part, name in enumerate(("hidden", "cells")):
                self._network.rows(name, k)[0] = state[f"state.{k}.{part}"][0].numpy()
