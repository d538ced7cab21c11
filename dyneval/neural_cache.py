"""The continuous cache of Grave et al. (2017) around any predictor: what followed hidden states
like this one?

P_cache(x_{t+1}) ∝ Σ_i 1[x_{i+1} = x_{t+1}] exp(ω h_t · h_i) over the last pairs (h_i, x_{i+1}),
and P = (1 − λ) P_base + λ P_cache. Pairs are taken from the tokens as they are read, inside a
segment too; with an empty cache the base speaks alone, so that probabilities add up to one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from dyneval.predictors import Predictor
from dyneval.reading import Categorical
from dyneval.streams import PAD

WarmUp = Literal["none", "full_window"]


class Base(Predictor, Protocol):
    """A predictor that gives probabilities and hidden states."""

    engine: str

    def predict(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens just read -> what follows each."""
        ...


def check(size: int, weight: float, scale: float, warm_up: WarmUp) -> None:
    """Refuse settings that no cache can have."""
    if size < 1 or not 0 <= weight < 1 or not (math.isfinite(scale) and scale >= 0):
        raise ValueError(
            f"a cache of size {size}, weight {weight} and scale {scale}: give a size of at "
            "least 1, a weight from 0 to below 1 and a scale of at least 0"
        )
    if warm_up not in ("none", "full_window"):
        raise ValueError(f"warm_up={warm_up!r} is not known; give none or full_window")


@dataclass
class _Memory:
    """The last pairs of one stream, in a ring; pair k lies in slot k mod the ring's length."""

    keys: Tensor  # (C, H) h_i
    values: Tensor  # (C,) x_{i+1}
    numbers: Tensor  # (C,) k, or −1 in an empty slot
    count: int = 0  # pairs so far
    last: Tensor | None = None  # (1, H) the hidden state that waits for its token

    @classmethod
    def of(cls, slots: int, like: Tensor) -> _Memory:
        """Return an empty memory."""
        numbers = torch.full((slots,), -1, dtype=torch.long, device=like.device)
        keys = like.new_zeros(slots, like.shape[-1])
        return cls(keys, numbers.clamp(min=0), numbers)

    def to(self, device: torch.device) -> None:
        """Lie on a device from now on."""
        for name in ("keys", "values", "numbers", "last"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.to(device))

    def write(self, hidden: Tensor, tokens: Tensor) -> None:
        """Add the pairs that (T,) tokens complete; (T, H) hidden came of reading them."""
        keys = hidden[:-1] if self.last is None else torch.cat([self.last, hidden[:-1]])
        values = tokens[len(tokens) - len(keys) :]
        numbers = torch.arange(self.count, self.count + len(keys), device=hidden.device)
        slots = numbers % len(self.numbers)
        self.keys[slots], self.values[slots], self.numbers[slots] = keys, values, numbers
        self.count += len(keys)
        self.last = hidden[-1:].clone()


class NeuralCache:
    """Mix a base predictor with what followed similar hidden states among the last `size`."""

    def __init__(
        self,
        base: Base,
        size: int = 500,
        weight: float = 0.1,  # λ
        scale: float = 1.0,  # ω
        warm_up: WarmUp = "none",
    ) -> None:
        check(size, weight, scale, warm_up)
        self.base, self.size, self.weight, self.scale = base, size, weight, scale
        self.warm_up = warm_up
        self.engine = base.engine  # what runs the base, and why
        self._memories: list[_Memory | None] = []

    @torch.no_grad()
    def predict(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens just read -> what follows each, by the base and the cache."""
        prediction = self.base.predict(tokens)
        self._memories += [None] * (len(tokens) - len(self._memories))
        log_probs = prediction.log_probs.clone()
        for row, length in enumerate((tokens != PAD).sum(1).tolist()):
            if length:
                hidden = prediction.hidden[row, :length]
                log_probs[row, :length] = self._mix(
                    row, log_probs[row, :length], hidden, tokens[row, :length].to(hidden.device)
                )
        return Categorical(log_probs, prediction.hidden)

    def _mix(self, row: int, log_probs: Tensor, hidden: Tensor, tokens: Tensor) -> Tensor:
        memory = self._room(row, hidden)
        first = memory.count + (memory.last is not None)  # pairs once the first token is read
        memory.write(hidden, tokens)
        counts = torch.arange(first, first + len(tokens), device=hidden.device)[:, None]
        usable = (memory.numbers < counts) & (memory.numbers >= counts - self.size)  # (T, C)
        usable &= memory.numbers >= 0
        scores = (self.scale * hidden @ memory.keys.T).masked_fill(~usable, -torch.inf)
        ready = usable.sum(1) >= (self.size if self.warm_up == "full_window" else 1)
        attention = torch.softmax(scores, 1).nan_to_num()  # NaN where nothing is usable
        cached = torch.zeros_like(log_probs).index_add_(1, memory.values, attention)
        mixed = torch.logaddexp(
            log_probs + math.log1p(-self.weight), torch.log(self.weight * cached)
        )
        return torch.where(ready[:, None], mixed, log_probs)

    def _room(self, row: int, hidden: Tensor) -> _Memory:
        """Return a row's memory, with slots for the window and what is read now."""
        memory = self._memories[row]
        if memory is None:
            memory = _Memory.of(self.size + len(hidden), hidden)
        memory.to(hidden.device)  # one that was loaded may be elsewhere
        if len(memory.numbers) < self.size + len(hidden):
            larger = _Memory.of(self.size + len(hidden), hidden)
            held = memory.numbers >= 0
            slots = memory.numbers[held] % len(larger.numbers)
            for name in ("keys", "values", "numbers"):
                getattr(larger, name)[slots] = getattr(memory, name)[held]
            larger.count, larger.last = memory.count, memory.last
            memory = larger
        self._memories[row] = memory
        return memory

    def learn(self, targets: Tensor) -> None:
        """Let the base learn; the cache has taken its pairs while reading."""
        self.base.learn(targets)

    def reset(
        self, streams: Tensor | None = None, *, weights: bool = True, state: bool = True
    ) -> None:
        """Start streams afresh; `weights` empties the cache, `state` begins another text."""
        self.base.reset(streams, weights=weights, state=state)
        rows = range(len(self._memories)) if streams is None else streams.tolist()
        for row in rows:
            memory = self._memories[row]
            if memory is not None and weights:
                emptied = _Memory.of(len(memory.numbers), memory.keys)
                self._memories[row] = memory = replace(emptied, last=memory.last)
            if memory is not None and state:
                memory.last = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the base's state, and the pairs."""
        state = self.base.state_dict()
        for row, memory in enumerate(self._memories):
            if memory is not None:
                start = f"cache.{row}"
                state[f"{start}.count"] = torch.tensor(memory.count)
                for name in ("keys", "values", "numbers", "last"):
                    value = getattr(memory, name)
                    if value is not None:
                        state[f"{start}.{name}"] = value.clone()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self.base.load_state_dict(state)
        self._memories = [None] * len(state["position"])
        for row in range(len(self._memories)):
            start = f"cache.{row}"
            if f"{start}.keys" in state:
                self._memories[row] = _Memory(
                    keys=state[f"{start}.keys"].clone(),
                    values=state[f"{start}.values"].clone(),
                    numbers=state[f"{start}.numbers"].clone(),
                    count=int(state[f"{start}.count"]),
                    last=state.get(f"{start}.last"),
                )
