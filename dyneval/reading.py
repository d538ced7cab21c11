"""Reading: what a model says follows each token, and the hidden state it keeps meanwhile.

A `Categorical` is a prediction. A `Reader` takes B streams of unequal length through a model, so
that each is read just as it would be alone. Nothing here learns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dyneval.streams import PAD

State = Any  # a tree of tensors (tuples and dicts), the streams on each one's first dimension


class Prediction(Protocol):
    """What is expected to follow each token of a segment."""

    def nats(self, targets: Tensor) -> Tensor:
        """(B, T) what followed -> (B, T) −log p of it, NaN where it is PAD."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Log-probabilities (B, T, V) of the token after each, and the hidden states (B, T, H)."""

    log_probs: Tensor
    hidden: Tensor

    def nats(self, targets: Tensor) -> Tensor:
        """(B, T) what followed -> (B, T) −log p of it, NaN where it is PAD."""
        targets = targets.to(self.log_probs.device)
        missing = targets == PAD
        indices = targets.masked_fill(missing, 0).unsqueeze(-1)
        nats = -self.log_probs.gather(-1, indices).squeeze(-1)
        return nats.masked_fill(missing, torch.nan)

    def detach(self) -> Categorical:
        """Return the same prediction without its graph."""
        return Categorical(self.log_probs.detach(), self.hidden.detach())


def assemble(parts: list[Categorical], rows: list[int], shape: torch.Size) -> Categorical:
    """Return the predictions of several batches of rows as one of (B, T), NaN where there is none.

    `rows` are the numbers of the parts' rows, in their order.
    """
    if len(parts) == 1 and rows == list(range(shape[0])) and parts[0].hidden.shape[1] == shape[1]:
        return parts[0]

    def joined(name: str) -> Tensor:
        padded = [
            nn.functional.pad(part, (0, 0, 0, shape[1] - part.shape[1]), value=torch.nan)
            for part in (getattr(part, name) for part in parts)
        ]
        every = torch.cat(padded)
        places = torch.tensor(rows, device=every.device)
        return every.new_full((shape[0], *every.shape[1:]), torch.nan).index_copy(0, places, every)

    return Categorical(joined("log_probs"), joined("hidden"))


def concatenate(parts: list[Categorical]) -> Categorical:
    """Return consecutive predictions as one."""
    if len(parts) == 1:
        return parts[0]
    return Categorical(
        torch.cat([part.log_probs for part in parts], 1),
        torch.cat([part.hidden for part in parts], 1),
    )


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply a function to every tensor of a state."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, Mapping):
        return {key: map_state(function, value) for key, value in state.items()}
    return None if state is None else tuple(map_state(function, value) for value in state)


def _stack(states: list[State]) -> State:
    """Return the states of several rows as that of a batch."""
    first = states[0]
    if first is None or len(states) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(states)
    if isinstance(first, Mapping):
        return {key: _stack([state[key] for state in states]) for key in first}
    return tuple(_stack(list(part)) for part in zip(*states, strict=True))


def leaves(state: State, path: str) -> dict[str, Tensor]:
    """Return the tensors of a state by their paths: `path.0.1` is the second of the first."""
    if state is None:
        return {}
    if isinstance(state, Tensor):
        return {path: state}
    items = state.items() if isinstance(state, Mapping) else enumerate(state)
    return {k: leaf for key, value in items for k, leaf in leaves(value, f"{path}.{key}").items()}


def tree(flat: Mapping[str, Tensor], path: str, device: torch.device | None = None) -> State:
    """Return the state whose `leaves` these are, on a device (default: where they are)."""
    if path in flat:
        return flat[path].to(device=device)
    start = f"{path}."
    keys = {name.removeprefix(start).split(".")[0] for name in flat if name.startswith(start)}
    if all(map(str.isdigit, keys)):
        return tuple(tree(flat, start + key, device) for key in sorted(keys, key=int)) or None
    return {key: tree(flat, start + key, device) for key in sorted(keys)}


def evaluating(model: Any) -> Any:
    """Return a module that is one's own in eval mode, without dropout but with gradients."""
    model.eval()
    on_cuda = any(weight.is_cuda for weight in (*model.parameters(), *model.buffers()))
    for module in model.modules() if on_cuda else ():
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0
            module.training = True  # or else cuDNN refuses to go back through it
    return model


class Reader:
    """A model and the hidden states of B streams that it reads with one set of weights.

    Rows that read equally far go through the model together, others apart, so that each row is
    read just as it would be alone, whatever the lengths. Tokens may come from any device.
    """

    def __init__(
        self,
        model: Any,
        device: torch.device | None = None,
        of: Callable[[list[int]], Any] | None = None,
    ) -> None:
        self.model, self.device = model, device  # None: where the tokens are
        self._of = of or (lambda rows: model)  # what some rows are read with, where they differ
        self.states: list[tuple[list[int], State]] = []  # rows that were read together, and after

    def read(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens, PAD at a row's end -> what follows each, with its graph."""
        if not self.states:
            self.states = [(list(range(len(tokens))), None)]
        batches = self._batches((tokens != PAD).sum(1).tolist())
        rows, parts, states = [], [], []
        for members, length, state in batches:
            if length:
                inputs = (tokens if len(batches) == 1 else tokens[members])[:, :length]
                model = self._of(members)
                hidden, state = model.hidden(inputs.to(device=self.device), state)
                log_probs = torch.log_softmax(model.logits(hidden), -1)
                rows += members
                parts.append(Categorical(log_probs, hidden))
            states.append((members, state))
        self.states = states
        return assemble(parts, rows, tokens.shape)

    def _batches(self, lengths: list[int]) -> list[tuple[list[int], int, State]]:
        """Return which rows to read together, how far, and from which state."""
        members, state = self.states[0]
        if len(self.states) == 1 and len(set(lengths)) == 1:
            return [(members, lengths[0], state)]
        batches: dict[Any, list[tuple[int, State]]] = {}
        for row, state in sorted(self.split().items()):
            shapes = tuple((path, leaf.shape) for path, leaf in leaves(state, "").items())
            batches.setdefault((lengths[row], shapes), []).append((row, state))
        return [
            ([row for row, _ in batch], length, _stack([state for _, state in batch]))
            for (length, _), batch in batches.items()
        ]

    def split(self) -> dict[int, State]:
        """Return the state of each row."""
        return {
            row: map_state(lambda leaf, k=k: leaf[k : k + 1], state)  # type: ignore[misc]
            for rows, state in self.states
            for k, row in enumerate(rows)
        }

    def cut(self) -> None:
        """Forget the graph: what is read next does not reach back behind this point."""
        self.states = [(rows, map_state(Tensor.detach, state)) for rows, state in self.states]

    def reset(self, streams: Iterable[int]) -> None:
        """Put streams before their first token."""
        states = self.split() | dict.fromkeys(streams)
        self.states = [([row], state) for row, state in states.items()]
        if states and all(state is None for state in states.values()):
            self.states = [(sorted(states), None)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the hidden state of each row by its path."""
        rows = self.split().items()
        return {k: leaf for row, state in rows for k, leaf in leaves(state, f"state.{row}").items()}

    def load_state_dict(self, state: Mapping[str, Tensor], count: int) -> None:
        """Go on with `count` rows where `state_dict` was taken."""
        self.states = [([row], tree(state, f"state.{row}", self.device)) for row in range(count)]
