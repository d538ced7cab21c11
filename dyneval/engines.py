"""Engines: how a stream's weights are read with and moved.

`Reference` is autograd and an in-place update: it works for any module, and every faster engine
is tested against it. What an engine promises is the protocol `Engine`, for a single stream; `Rows`
keeps one for each of several, and is itself a `Streams`, what `predictors.Dynamic` asks of those
who look after the weights of B streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dyneval.gradient_stats import Prior, Running, RunningPrior
from dyneval.models import own_copy
from dyneval.reading import Categorical, Reader, assemble, concatenate, evaluating, leaves, tree
from dyneval.rules import Amount, Rule


class Engine(Protocol):
    """One stream's adapted weights θ_l, its hidden state, and its open segment."""

    def predict(self, tokens: Tensor) -> Categorical:
        """(1, T) tokens, none of them PAD -> what follows each, without a graph."""
        ...

    def learn(self, targets: Tensor) -> None:
        """(1, n) what followed the open segment's first n tokens: one step on its mean nats.

        With n = 0 the weights stay. Either way the segment ends here.
        """
        ...

    def reset(self, *, weights: bool, state: bool) -> None:
        """Drop the open segment; go back to the trained weights, the zero state, or both."""
        ...

    def weights(self, as_read: bool = False) -> dict[str, Tensor]:
        """Return θ_l by name, as it is now; `as_read`, as rounded as the model's own weights are.

        They are the tensors that each step and reset changes in place.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return `weights.NAME` and `state.PATH`, copies that nothing changes later."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        ...


class Streams(Protocol):
    """B streams' adapted weights, hidden states and open segments; they share nothing.

    Rows of tokens may be of unequal length; `lengths` and `counts` say how many are no PAD.
    """

    count: int  # B

    def predict(self, tokens: Tensor, lengths: list[int]) -> Categorical:
        """(B, T) tokens -> what follows each, without a graph; NaN where there is none."""
        ...

    def learn(self, targets: Tensor, counts: list[int]) -> None:
        """(B, n) what followed: one step on each row's mean nats; the segment ends here."""
        ...

    def reset(self, rows: list[int], *, weights: bool, state: bool) -> None:
        """Let some rows go back to the trained weights, the zero state, or both."""
        ...

    def weights(self, row: int, as_read: bool = False) -> dict[str, Tensor]:
        """Return θ_l of a row by name, as it is now, or as an engine reads with it."""
        ...

    def state_dict(self, row: int) -> dict[str, Tensor]:
        """Return `weights.NAME` and `state.PATH` of a row, copies that nothing changes later."""
        ...

    def load_state_dict(self, row: int, state: Mapping[str, Tensor]) -> None:
        """Let a row go on where `state_dict` was taken."""
        ...


class Rows:
    """An engine for each of B streams."""

    def __init__(self, make: Callable[[], Engine], count: int) -> None:
        self.count = count
        self._engines = [make() for _ in range(count)]

    def predict(self, tokens: Tensor, lengths: list[int]) -> Categorical:
        """(B, T) tokens -> what follows each, without a graph; NaN where there is none."""
        rows = [row for row, length in enumerate(lengths) if length]
        parts = [self._engines[row].predict(tokens[row : row + 1, : lengths[row]]) for row in rows]
        return assemble(parts, rows, tokens.shape)

    def learn(self, targets: Tensor, counts: list[int]) -> None:
        """(B, n) what followed: one step on each row's mean nats; the segment ends here."""
        for row, (engine, count) in enumerate(zip(self._engines, counts, strict=True)):
            engine.learn(targets[row : row + 1, :count])

    def reset(self, rows: list[int], *, weights: bool, state: bool) -> None:
        """Let some rows go back to the trained weights, the zero state, or both."""
        for row in rows:
            self._engines[row].reset(weights=weights, state=state)

    def weights(self, row: int, as_read: bool = False) -> dict[str, Tensor]:
        """Return θ_l of a row by name, as it is now, or as its engine reads with it."""
        return self._engines[row].weights(as_read)

    def state_dict(self, row: int) -> dict[str, Tensor]:
        """Return `weights.NAME` and `state.PATH` of a row."""
        return self._engines[row].state_dict()

    def load_state_dict(self, row: int, state: Mapping[str, Tensor]) -> None:
        """Let a row go on where `state_dict` was taken."""
        self._engines[row].load_state_dict(state)


class Autograd:
    """What engines have in common that leave the gradient to autograd: all but the step itself.

    `own` is a module with weights of its own, which are θ_l.
    """

    def __init__(self, own: Any, priors: Mapping[str, Prior]) -> None:
        self._priors = priors
        self._parameters: dict[str, nn.Parameter] = dict(own.named_parameters())
        self._theta = {name: weight.detach() for name, weight in self._parameters.items()}
        self._device = next(own.parameters()).device
        self._reader = Reader(evaluating(own).requires_grad_(True), self._device)
        self._open: list[Categorical] = []  # with their graphs

    def _step(self, loss: Tensor) -> None:
        """Take one step on the mean nats of a segment."""
        raise NotImplementedError

    def _cut(self) -> None:
        """End the segment."""
        self._open.clear()
        self._reader.cut()

    @torch.enable_grad()  # whatever the caller has set: learning needs the graph
    def predict(self, tokens: Tensor) -> Categorical:
        """(1, T) tokens -> what follows each, by the weights of this segment."""
        self._open.append(self._reader.read(tokens))
        return self._open[-1].detach()

    @torch.enable_grad()
    def learn(self, targets: Tensor) -> None:
        """(1, n) what followed -> one step of the rule on its mean nats."""
        if targets.shape[1]:
            whole = concatenate(self._open)
            count = targets.shape[1]
            read = Categorical(whole.log_probs[:, :count], whole.hidden[:, :count])
            self._step(read.nats(targets).mean())
        self._cut()

    @torch.no_grad()
    def reset(self, *, weights: bool, state: bool) -> None:
        """Drop the open segment; go back to the trained weights, the zero state, or both."""
        self._cut()
        if state:
            self._reader.reset([0])
        if weights:
            for name, theta in self._theta.items():
                theta.copy_(self._priors[name].theta)

    def weights(self, as_read: bool = False) -> dict[str, Tensor]:
        """Return θ_l by name, as it is now; `as_read`, as rounded as the model's weights are."""
        if as_read:
            return {name: weight.detach() for name, weight in self._parameters.items()}
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


class Reference(Autograd):
    """Autograd, then the update in place: θ_l ← θ_l − gain ⊙ ∇L + pull ⊙ (θ_g − θ_l).

    Weights of 16 bits are read with, but moved in float32, where small steps add up.
    """

    def __init__(self, model: Any, rule: Rule, priors: Mapping[str, Prior]) -> None:
        super().__init__(own_copy(model, {}), priors)
        # what moves; rounded to the parameters where these have fewer bits
        self._theta = {name: theta.to(precise(theta)) for name, theta in self._theta.items()}
        past = {name: prior for name, prior in priors.items() if isinstance(prior, RunningPrior)}
        self._rule, self._running = rule, Running(past) if past else None
        self._amounts = self._gains(priors)  # once for all segments, unless statistics are running

    def _gains(self, priors: Mapping[str, Prior] | None) -> dict[str, tuple[Amount, Amount]]:
        """Return the gain and pull of each weight."""
        rule = self._rule
        if priors is None or any(isinstance(prior, RunningPrior) for prior in priors.values()):
            return {}  # there is too little of a past
        return {name: (rule.gain(priors[name]), rule.pull(priors[name])) for name in self._theta}

    def _step(self, loss: Tensor) -> None:
        found = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True)
        gradients = dict(zip(self._theta, found, strict=True))
        with torch.no_grad():
            for name, (gain, pull) in self._amounts.items():
                theta, gradient = self._theta[name], gradients[name]
                if isinstance(pull, Tensor) or pull:
                    theta.lerp_(self._priors[name].theta.to(theta), pull)
                if gradient is not None:  # or else it was not used, and feels its pull alone
                    if isinstance(gain, Tensor):
                        theta.addcmul_(gradient.to(theta), gain, value=-1)
                    else:
                        theta.sub_(gradient.to(theta), alpha=gain)
            if self._running:
                self._running.add(gradients)
                self._amounts = self._gains(self._running.priors())
        self._round()

    def _round(self) -> None:
        """Read with what the weights are by now."""
        with torch.no_grad():
            for name, theta in self._theta.items():
                parameter = self._parameters[name]
                if parameter.dtype != theta.dtype:
                    parameter.copy_(theta)

    def reset(self, *, weights: bool, state: bool) -> None:
        """Drop the open segment; go back to the trained weights, the zero state, or both."""
        super().reset(weights=weights, state=state)
        if weights and self._running:
            self._running.reset()
            self._amounts = {}
        self._round()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the adapted weights, the hidden state, and statistics that are running."""
        state = super().state_dict()
        if self._running:
            state["running.count"] = torch.tensor(self._running.count)
            for name, squares in self._running.squares.items():
                state[f"running.squares.{name}"] = squares.clone()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        super().load_state_dict(state)
        if self._running:
            self._running.count = int(state["running.count"])
            for name, squares in self._running.squares.items():
                squares.copy_(state[f"running.squares.{name}"])
            self._amounts = self._gains(self._running.priors())
        self._round()


def precise(weight: Tensor) -> torch.dtype:
    """Return in which precision a weight is to be moved: 32 bits at least."""
    return torch.promote_types(weight.dtype, torch.float32)
