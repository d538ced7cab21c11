"""Predictors: a stream being read. `predict` what follows, then `learn` what did.

`Static` only reads. `Dynamic` takes one step of a rule on each segment once it is scored, on its
own copy of the weights. Both keep to the protocol below, and so must any other predictor; the
loop in `evaluation.py` knows nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dyneval.gradient_stats import Prior
from dyneval.rules import Rule
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
        missing = targets == PAD
        indices = targets.masked_fill(missing, 0).unsqueeze(-1)
        nats = -self.log_probs.gather(-1, indices).squeeze(-1)
        return nats.masked_fill(missing, torch.nan)

    def detach(self) -> Categorical:
        """Return the same prediction without its graph."""
        return Categorical(self.log_probs.detach(), self.hidden.detach())


class Predictor(Protocol):
    """A stream being read, or B of them side by side that never share what they learn.

    A segment is what was predicted since the last `learn`, in one call or token by token.
    """

    def predict(self, tokens: Tensor) -> Prediction:
        """(B, T) tokens just read -> what follows each; both without a graph."""
        ...

    def learn(self, targets: Tensor) -> None:
        """(B, S) what followed all that was predicted since the last learn; PAD at a row's end."""
        ...

    def reset(
        self, streams: Tensor | None = None, *, weights: bool = True, state: bool = True
    ) -> None:
        """Start streams (default: all) afresh: at the trained weights, the zero state, or both."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that an exact resume needs; an error in the middle of a segment."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        ...


def _map(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply a function to every tensor of a state."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, Mapping):
        return {key: _map(function, value) for key, value in state.items()}
    return None if state is None else tuple(_map(function, value) for value in state)


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


def _leaves(state: State, path: str) -> dict[str, Tensor]:
    """Return the tensors of a state by their paths: `path.0.1` is the second of the first."""
    if state is None:
        return {}
    if isinstance(state, Tensor):
        return {path: state}
    items = state.items() if isinstance(state, Mapping) else enumerate(state)
    return {k: leaf for key, value in items for k, leaf in _leaves(value, f"{path}.{key}").items()}


def _tree(leaves: Mapping[str, Tensor], path: str) -> State:
    """Return the state whose `_leaves` these are."""
    if path in leaves:
        return leaves[path]
    start = f"{path}."
    keys = {name.removeprefix(start).split(".")[0] for name in leaves if name.startswith(start)}
    if all(map(str.isdigit, keys)):
        return tuple(_tree(leaves, start + key) for key in sorted(keys, key=int)) or None
    return {key: _tree(leaves, start + key) for key in sorted(keys)}


class Reader:
    """A model and the hidden states of B streams that it reads with one set of weights.

    Rows that read equally far go through the model together, others apart, so that each row is
    read just as it would be alone, whatever the lengths.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.states: list[tuple[list[int], State]] = []  # rows that were read together, and after

    def read(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens, PAD at a row's end -> what follows each, with its graph."""
        if not self.states:
            self.states = [(list(range(len(tokens))), None)]
        batches = self._batches((tokens != PAD).sum(1).tolist())
        self.states = []
        rows, log_probs, hiddens = [], [], []
        for members, length, state in batches:
            if length:
                inputs = tokens if len(batches) == 1 else tokens[members]
                hidden, state = self.model.hidden(inputs[:, :length], state)
                fill = (0, 0, 0, tokens.shape[1] - length)
                log_prob = torch.log_softmax(self.model.logits(hidden), -1)
                rows += members
                log_probs.append(nn.functional.pad(log_prob, fill, value=torch.nan))
                hiddens.append(nn.functional.pad(hidden, fill, value=torch.nan))
            self.states.append((members, state))
        if not rows:
            raise ValueError("there is no token to read: each of the given ones is PAD")
        return Categorical(*(_rows(parts, rows, len(tokens)) for parts in (log_probs, hiddens)))

    def _batches(self, lengths: list[int]) -> list[tuple[list[int], int, State]]:
        """Return which rows to read together, how far, and from which state."""
        members, state = self.states[0]
        if len(self.states) == 1 and len(set(lengths)) == 1:
            return [(members, lengths[0], state)]
        batches: dict[Any, list[tuple[int, State]]] = {}
        for row, state in sorted(self.split().items()):
            shapes = tuple((path, leaf.shape) for path, leaf in _leaves(state, "").items())
            batches.setdefault((lengths[row], shapes), []).append((row, state))
        return [
            ([row for row, _ in batch], length, _stack([state for _, state in batch]))
            for (length, _), batch in batches.items()
        ]

    def split(self) -> dict[int, State]:
        """Return the state of each row."""
        return {
            row: _map(lambda leaf, k=k: leaf[k : k + 1], state)  # type: ignore[misc]
            for rows, state in self.states
            for k, row in enumerate(rows)
        }

    def cut(self) -> None:
        """Forget the graph: what is read next does not reach back behind this point."""
        self.states = [(rows, _map(Tensor.detach, state)) for rows, state in self.states]

    def reset(self, streams: Iterable[int]) -> None:
        """Put streams before their first token."""
        states = self.split() | dict.fromkeys(streams)
        self.states = [([row], state) for row, state in states.items()]
        if all(state is None for state in states.values()):
            self.states = [(sorted(states), None)]


def _rows(parts: list[Tensor], rows: list[int], count: int) -> Tensor:
    """Return the rows of several batches in order, NaN where a row was not read."""
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    if rows == list(range(count)):
        return joined
    places = torch.tensor(rows, device=joined.device)
    return joined.new_full((count, *joined.shape[1:]), torch.nan).index_copy(0, places, joined)


class _Streams:
    """What all predictors here keep: how many streams there are, and where each one stands."""

    def __init__(self) -> None:
        self.position = torch.zeros(0, dtype=torch.long)  # (B,) tokens learned from
        self._predicted = 0  # since the last learn
        self._read = torch.zeros(0, dtype=torch.long)  # (B,) of these, how many were no PAD

    def _open(self, tokens: Tensor) -> None:
        """Check tokens that are to be read."""
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens are (B, T) with T at least 1; got {tuple(tokens.shape)}")
        if not len(self.position):
            self.position = torch.zeros(len(tokens), dtype=torch.long)
        if len(tokens) != len(self.position):
            raise ValueError(
                f"this predictor reads {len(self.position)} streams and was given {len(tokens)}; "
                "make another for another number of streams"
            )
        if not self._predicted:
            self._read = torch.zeros(len(tokens), dtype=torch.long)
        real = (tokens != PAD).cpu()
        ended = self._read < self._predicted
        if (real[:, 1:] > real[:, :-1]).any() or (real[:, 0] & ended).any():
            raise ValueError("PAD stands at a row's end only; a token came behind it")
        self._read = self._read + real.sum(1)
        self._predicted += tokens.shape[1]

    def _close(self, targets: Tensor) -> Tensor:
        """Check what followed a segment -> (B,) how many of its targets are no PAD."""
        expected = (len(self.position), self._predicted)
        if tuple(targets.shape) != expected or not self._predicted:
            raise ValueError(
                f"targets are {tuple(targets.shape)}, but {expected} were predicted since the "
                "last learn; give one target for each"
            )
        real = (targets != PAD).cpu()
        counts = real.sum(1)
        if (real[:, 1:] > real[:, :-1]).any() or (counts > self._read).any():
            raise ValueError("targets are PAD at a row's end only, and wherever the input was")
        self._predicted = 0
        self.position = self.position + counts
        return counts

    def _between(self, action: str) -> None:
        if self._predicted:
            raise ValueError(
                f"cannot {action} in the middle of a segment: {self._predicted} tokens were "
                "predicted and not learned from; learn first"
            )

    def _which(self, streams: Tensor | None) -> list[int]:
        """Return the numbers of the streams that a reset is about."""
        every = list(range(len(self.position)))
        if streams is None:
            self._predicted = 0
            return every
        self._between("reset some streams")
        return [every[k] for k in streams.tolist()]


class Static(_Streams):
    """Read with the trained weights, and forget: what the others are compared with."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._reader = Reader(model.eval())

    @torch.no_grad()
    def predict(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens just read -> what follows each."""
        self._open(tokens)
        return self._reader.read(tokens)

    def learn(self, targets: Tensor) -> None:
        """Go on to the next segment."""
        self._close(targets)

    def reset(
        self, streams: Tensor | None = None, *, weights: bool = True, state: bool = True
    ) -> None:
        """Start streams afresh; there are no adapted weights."""
        which = self._which(streams)
        if state:
            self._reader.reset(which)
            self.position[which] = 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return the hidden states and positions."""
        self._between("take the state")
        return _states(self._reader) | {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self.position = state["position"].clone()
        _load_states(self._reader, state, range(len(self.position)))


def _states(reader: Reader) -> dict[str, Tensor]:
    rows = reader.split().items()
    return {name: leaf for row, s in rows for name, leaf in _leaves(s, f"state.{row}").items()}


def _load_states(reader: Reader, state: Mapping[str, Tensor], rows: Iterable[int]) -> None:
    reader.states = [([row], _tree(state, f"state.{row}")) for row in rows]


class _Adapted:
    """One stream of `Dynamic`: its own weights θ_l, its hidden state, its open segment."""

    def __init__(self, model: Any) -> None:
        model = copy.deepcopy(model).eval().requires_grad_(True)
        self.weights: dict[str, Tensor] = dict(model.named_parameters())
        self.reader = Reader(model)
        self.open: list[Categorical] = []  # with their graphs

    def loss(self, targets: Tensor) -> Tensor:
        """(1, n) what followed -> the segment's mean nats."""
        log_probs, hidden = (
            torch.cat([getattr(part, name) for part in self.open], 1)[:, : targets.shape[1]]
            for name in ("log_probs", "hidden")
        )
        return Categorical(log_probs, hidden).nats(targets).mean()


class Dynamic(_Streams):
    """Learn from each segment once it is scored: one step of a rule on its mean nats.

    θ_l starts as θ_g, the weights of `model`, which is never written to. Each stream has a θ_l
    of its own. The hidden state is carried over, computed with the weights of its time. Learning
    runs in eval mode: no dropout.
    """

    def __init__(self, model: Any, rule: Rule, priors: Mapping[str, Prior] | None = None) -> None:
        super().__init__()
        self._model = model.eval()
        self._priors = priors or none(model)
        missing = [name for name, _ in model.named_parameters() if name not in self._priors]
        if missing:
            raise ValueError(f"there is no prior for the weight {missing[0]}")
        # both once for all segments and streams
        self._amounts = {
            name: (rule.gain(prior), rule.pull(prior)) for name, prior in self._priors.items()
        }
        self._streams: list[_Adapted] = []

    def predict(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens just read -> what follows each, by the weights of this segment."""
        self._open(tokens)
        self._make_streams(len(tokens))
        parts: list[Categorical] = []
        rows: list[int] = []
        for row, stream in enumerate(self._streams):
            if tokens[row, 0] != PAD:
                prediction = stream.reader.read(tokens[row : row + 1])
                stream.open.append(prediction)
                parts.append(prediction.detach())
                rows.append(row)
        if not rows:
            raise ValueError("there is no token to read: each of the given ones is PAD")
        return Categorical(
            _rows([part.log_probs for part in parts], rows, len(tokens)),
            _rows([part.hidden for part in parts], rows, len(tokens)),
        )

    def learn(self, targets: Tensor) -> None:
        """Take one step on each row's mean over its own targets; a row without one stays."""
        counts = self._close(targets).tolist()
        for row, (stream, count) in enumerate(zip(self._streams, counts, strict=True)):
            if count:
                self._step(stream, stream.loss(targets[row : row + 1, :count]))
            stream.open.clear()
            stream.reader.cut()

    def _step(self, stream: _Adapted, loss: Tensor) -> None:
        """θ_l ← θ_l − gain ⊙ ∇L + pull ⊙ (θ_g − θ_l)."""
        gradients = torch.autograd.grad(loss, list(stream.weights.values()), allow_unused=True)
        with torch.no_grad():
            for (name, theta), gradient in zip(stream.weights.items(), gradients, strict=True):
                gain, pull = self._amounts[name]
                if isinstance(pull, Tensor) or pull:
                    theta.lerp_(self._priors[name].theta, pull)
                if gradient is None:  # not used in this segment: it feels its pull alone
                    continue
                if isinstance(gain, Tensor):
                    theta.addcmul_(gradient, gain, value=-1)
                else:
                    theta.sub_(gradient, alpha=gain)

    def _make_streams(self, count: int) -> None:
        if not self._streams:
            self._streams = [_Adapted(self._model) for _ in range(count)]

    @torch.no_grad()
    def reset(
        self, streams: Tensor | None = None, *, weights: bool = True, state: bool = True
    ) -> None:
        """Start streams (default: all) afresh: at the trained weights, the zero state, or both."""
        which = self._which(streams)
        for stream in (self._streams[row] for row in which):
            stream.open.clear()
            stream.reader.cut()
            if state:
                stream.reader.reset([0])
            if weights:
                for name, theta in stream.weights.items():
                    theta.copy_(self._priors[name].theta)
        if state:
            self.position[which] = 0

    def weights(self, stream: int = 0) -> dict[str, Tensor]:
        """Return θ_l of a stream, by name, as it is now."""
        self._make_streams(max(1, len(self.position)))
        return {name: theta.detach() for name, theta in self._streams[stream].weights.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the adapted weights, hidden states and positions."""
        self._between("take the state")
        state = {"position": self.position}
        for row, stream in enumerate(self._streams):
            for name, theta in stream.weights.items():
                state[f"weights.{row}.{name}"] = theta.detach().clone()
            state |= _leaves(stream.reader.split().get(0), f"state.{row}")
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self.position = state["position"].clone()
        self._predicted = 0
        self._streams = []
        if len(self.position):
            self._make_streams(len(self.position))
        for row, stream in enumerate(self._streams):
            for name, theta in stream.weights.items():
                theta.copy_(state[f"weights.{row}.{name}"])
            stream.reader.states = [([0], _tree(state, f"state.{row}"))]


class Collector(_Streams):
    """Gather gradient statistics from training text; the weights stay as they are (eq. 5).

    A batch is a segment of B streams, its loss the mean over all its tokens. Given to the same
    loop as any predictor.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        own = copy.deepcopy(model).eval().requires_grad_(True)
        self._model = model
        self._weights = dict(own.named_parameters())
        self._reader = Reader(own)
        self._open_parts: list[Categorical] = []
        self._squares = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
        self.batches = 0  # N_b

    def predict(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens just read -> what follows each, by the trained weights."""
        self._open(tokens)
        self._open_parts.append(self._reader.read(tokens))
        return self._open_parts[-1].detach()

    def learn(self, targets: Tensor) -> None:
        """Add the square of this batch's gradient."""
        self._close(targets)
        log_probs = torch.cat([part.log_probs for part in self._open_parts], 1)
        loss = Categorical(log_probs, log_probs).nats(targets).nanmean()
        gradients = torch.autograd.grad(loss, list(self._weights.values()), allow_unused=True)
        for squares, gradient in zip(self._squares.values(), gradients, strict=True):
            if gradient is not None:
                squares.addcmul_(gradient, gradient)
        self.batches += 1
        self._open_parts.clear()
        self._reader.cut()
