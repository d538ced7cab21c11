"""Predictors: a stream being read. `predict` what follows, then `learn` what did.

`Static` only reads. `Dynamic` takes one step of a rule on each segment once it is scored, on its
own copy of the weights. Both keep to the protocol below, and so must any other predictor; the
loop in `evaluation.py` knows nothing else. How fast they are is the matter of `kernels/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from dyneval import kernels
from dyneval.engines import Streams
from dyneval.gradient_stats import Collection, GradientStats, Prior, without_statistics
from dyneval.models import fingerprint, own_copy
from dyneval.processes import ALONE, Group
from dyneval.reading import Categorical, Prediction, Reader, concatenate, evaluating
from dyneval.rules import Rule
from dyneval.streams import PAD
from dyneval.targets import target_of


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


class _Streams:
    """What all predictors here keep: how many streams there are, and where each one stands."""

    def __init__(self) -> None:
        self.position = torch.zeros(0, dtype=torch.long)  # (B,) tokens learned from
        self._predicted = 0  # since the last learn
        self._read = torch.zeros(0, dtype=torch.long)  # (B,) of these, how many were no PAD

    def __getstate__(self) -> None:
        # engines hold addresses, and views of each other's tensors
        raise TypeError("a predictor cannot be copied; make another and load this one's state_dict")

    def _open(self, tokens: Tensor) -> list[int]:
        """Check tokens that are to be read -> how many of each row are no PAD."""
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens are (B, T) with T at least 1; got {tuple(tokens.shape)}")
        count = len(self.position) or len(tokens)
        if len(tokens) != count:
            raise ValueError(
                f"this predictor reads {count} streams and was given {len(tokens)}; "
                "make another for another number of streams"
            )
        read = self._read if self._predicted else torch.zeros(count, dtype=torch.long)
        real = (tokens != PAD).cpu()
        if (real[:, 1:] > real[:, :-1]).any() or (real[:, 0] & (read < self._predicted)).any():
            raise ValueError("PAD stands at a row's end only; a token came behind it")
        lengths = real.sum(1)
        if not lengths.any():
            raise ValueError("there is no token to read: each of the given ones is PAD")
        if not len(self.position):
            self.position = torch.zeros(count, dtype=torch.long)
        self._read = read + lengths
        self._predicted += tokens.shape[1]
        return lengths.tolist()

    def _close(self, targets: Tensor) -> list[int]:
        """Check what followed a segment -> how many targets of each row are no PAD."""
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
        return counts.tolist()

    def _place(self, position: Tensor) -> None:
        """Stand between two segments, at a stored position."""
        self._between("load a state")
        self.position = position.clone()

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
        numbers: list[int] = streams.tolist()
        if streams.dtype == torch.bool or not set(numbers) <= set(every):
            raise ValueError(f"the streams to reset are numbers below {len(every)}; got {numbers}")
        return numbers


class Static(_Streams):
    """Read with the trained weights, and forget: what the others are compared with."""

    def __init__(self, model: Any, engine: kernels.Name = "auto") -> None:
        super().__init__()
        # the same weights in a module of its own: the caller's stays in the mode that it is in
        weights = list(model.parameters())
        own = own_copy(model, {id(weight): weight for weight in weights})
        # `engine` says what runs, and why
        forward, self.engine = kernels.fast_forward(own.eval(), engine)
        self._reader = Reader(forward, weights[0].device if weights else None)

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
        return self._reader.state_dict() | {"position": self.position.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self._place(state["position"])
        self._reader.load_state_dict(state, len(self.position))


class Dynamic(_Streams):
    """Learn from each segment once it is scored: one step of a rule on its mean nats.

    θ_l starts as θ_g, the weights of `model`, which is never written to. Each stream has a θ_l
    of its own. The hidden state is carried over, computed with the weights of its time. Learning
    runs in eval mode: no dropout.
    """

    def __init__(
        self,
        model: Any,
        rule: Rule,
        priors: Mapping[str, Prior] | None = None,
        engine: kernels.Name = "auto",
    ) -> None:
        super().__init__()
        if next(model.parameters(), None) is None:
            raise ValueError(
                f"a {type(model).__name__} has no weights that could learn; use Static"
            )
        priors = priors or without_statistics(model)
        missing = [name for name, _ in model.named_parameters() if name not in priors]
        if missing:
            raise ValueError(f"there is no prior for the weight {missing[0]}")
        # a rule that misses its statistics says so here; θ_l takes memory when it is first needed
        self._make, self.engine = kernels.choose(model, rule, priors, engine)
        self.priors = priors  # of each weight that adapts: θ_g, and what training left behind
        self._streams: Streams | None = None

    def predict(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens just read -> what follows each, by the weights of this segment."""
        lengths = self._open(tokens)
        return self._of(len(tokens)).predict(tokens, lengths)

    def _of(self, count: int) -> Streams:
        """Return what looks after so many streams, made when it is first needed."""
        if self._streams is None or self._streams.count != count:
            self._streams = self._make(count)
        return self._streams

    def learn(self, targets: Tensor) -> None:
        """Take one step on each row's mean over its own targets; a row without one stays."""
        counts = self._close(targets)
        self._of(len(targets)).learn(targets, counts)

    def reset(
        self, streams: Tensor | None = None, *, weights: bool = True, state: bool = True
    ) -> None:
        """Start streams (default: all) afresh: at the trained weights, the zero state, or both."""
        which = self._which(streams)
        if which:
            self._of(len(self.position)).reset(which, weights=weights, state=state)
        if state:
            self.position[which] = 0

    def weights(self, stream: int = 0, *, as_read: bool = False) -> dict[str, Tensor]:
        """Return θ_l of a stream, by name, as it is now.

        With `as_read` it is what text is read with, which differs where the model has 16 bits.
        """
        count = len(self.position) or stream + 1
        if not 0 <= stream < count:
            raise ValueError(f"there is no stream {stream}; give 0 to {count - 1}")
        return self._of(count).weights(stream, as_read)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the adapted weights, hidden states and positions."""
        self._between("take the state")
        count = len(self.position)
        return {"position": self.position.clone()} | {
            f"streams.{row}.{name}": value
            for row in range(count)
            for name, value in self._of(count).state_dict(row).items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self._place(state["position"])
        count = len(self.position)
        if not count:
            self._streams = None
        for row in range(count):
            start = f"streams.{row}."
            mine = {
                name.removeprefix(start): value
                for name, value in state.items()
                if name.startswith(start)
            }
            self._of(count).load_state_dict(row, mine)


class Collector(_Streams):
    """Gather gradient statistics from training text; the weights stay as they are (eq. 5).

    A batch is a segment of B streams, its loss the mean over all its tokens. It is given to the
    same loop as any predictor. Where processes share a batch, its gradient is their mean.
    """

    def __init__(self, model: Any, group: Group = ALONE) -> None:
        super().__init__()
        self._group = group
        self._hash, self._target = fingerprint(model), target_of(model)
        own = evaluating(own_copy(model, {})).requires_grad_(True)
        self._weights = dict(own.named_parameters())
        self._squares = {
            # in 16 bits a sum of many would stay where it is
            name: torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32))
            for name, w in model.named_parameters()
        }
        self._reader = Reader(own, next(own.parameters()).device)
        self._segment: list[Categorical] = []
        self._length = 0  # n, the longest segment
        self._batches = 0  # N_b

    @torch.enable_grad()
    def predict(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens just read -> what follows each, by the trained weights."""
        self._open(tokens)
        self._segment.append(self._reader.read(tokens))
        return self._segment[-1].detach()

    @torch.no_grad()
    def learn(self, targets: Tensor) -> None:
        """Add the square of this batch's gradient."""
        if any(self._close(targets)):
            with torch.enable_grad():
                loss = concatenate(self._segment).nats(targets).nanmean()
                gradients = torch.autograd.grad(
                    loss, list(self._weights.values()), allow_unused=True
                )
            self._group.average([part for part in gradients if part is not None])
            for squares, gradient in zip(self._squares.values(), gradients, strict=True):
                if gradient is not None:
                    squares.addcmul_(gradient.to(squares), gradient.to(squares))
            self._batches += 1
            self._length = max(self._length, targets.shape[1])
        self._segment.clear()
        self._reader.cut()

    def reset(
        self, streams: Tensor | None = None, *, weights: bool = True, state: bool = True
    ) -> None:
        """Start streams afresh; what was gathered stays, as the weights do."""
        which = self._which(streams)
        self._segment.clear()
        self._reader.cut()
        if state:
            self._reader.reset(which)
            self.position[which] = 0

    def stats(self, corpus: str = "", checksum: str = "") -> GradientStats:
        """Return the statistics of the batches so far."""
        if not self._batches:
            raise ValueError("no batch was read yet: there are no gradient statistics")
        counts = (len(self.position) * self._group.size, self._length, self._batches)
        collection = Collection(self._hash, *counts, corpus, checksum, self._target)
        return GradientStats(
            {name: (sum_ / self._batches).sqrt().cpu() for name, sum_ in self._squares.items()},
            collection,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums, hidden states and positions."""
        self._between("take the state")
        squares = {f"squares.{name}": value.clone() for name, value in self._squares.items()}
        counts = {"counts": torch.tensor([self._batches, self._length])}
        return squares | counts | self._reader.state_dict() | {"position": self.position.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self._place(state["position"])
        self._batches, self._length = state["counts"].tolist()
        for name, squares in self._squares.items():
            squares.copy_(state[f"squares.{name}"])
        self._segment.clear()
        self._reader.load_state_dict(state, len(self.position))
