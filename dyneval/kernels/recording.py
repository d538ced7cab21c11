"""Recordings: all launches of a segment on a GPU as two CUDA graphs, to read and to learn.

With a batch of one a GPU is done with a kernel before Python has launched the next. Segments of a
text look alike, so what is launched for one is recorded and then played for those that follow: the
same kernels on the same addresses, only that tokens, targets and the state were written there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dyneval.reading import Categorical, State, leaves, map_state

Read = Callable[[Tensor, State], tuple[Categorical, State]]
Learn = Callable[[Categorical, Tensor], None]
Key = tuple[Any, ...]
_ALIKE = 2  # segments of the same shapes before one is recorded


class Recording:
    """A segment of so many tokens, from a state of certain shapes."""

    def __init__(self, read: Read, learn: Learn, tokens: Tensor, state: State) -> None:
        self._tokens, self._targets = tokens.clone(), tokens.clone()
        self.state = map_state(Tensor.clone, state)
        self._reads, self._learns = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._reads):
            prediction, after = read(self._tokens, self.state)
        # one pool: what the first leaves for the second is not overwritten in between
        with torch.cuda.graph(self._learns, pool=self._reads.pool()):
            learn(prediction, self._targets)
            _write(self.state, map_state(Tensor.detach, after))
        self._prediction = prediction.detach()

    def read(self, tokens: Tensor, state: State) -> Categorical:
        """Return what follows each token, a copy that is not played over."""
        self._tokens.copy_(tokens)
        if state is not self.state:
            _write(self.state, state)
        self._reads.replay()
        return Categorical(self._prediction.log_probs.clone(), self._prediction.hidden.clone())

    def learn(self, targets: Tensor) -> None:
        """Take the step on the segment that was read last; `state` is the one after it."""
        self._targets.copy_(targets)
        self._learns.replay()


class Recorder:
    """Records once segments look alike, and tells which recording a segment can be played by."""

    def __init__(self, read: Read, learn: Learn, device: torch.device) -> None:
        self._read, self._learn, self._device = read, learn, device
        self._recorded: tuple[Key, Recording] | None = None
        self._key: Key | None = None  # of the segments that were not played
        self._seen = 0  # of them in a row
        self._refused = device.type != "cuda"

    def find(self, tokens: Tensor, state: State) -> Recording | None:
        """Return what a segment can be played by, if it was or can be recorded."""
        shapes = ((path, leaf.shape) for path, leaf in leaves(state, "").items())
        key = (tokens.shape, *shapes)
        if self._recorded is not None and key == self._recorded[0]:
            return self._recorded[1]
        self._seen = self._seen + 1 if key == self._key else 1
        self._key = key
        if self._seen <= _ALIKE or self._refused:
            return None
        try:
            recording = Recording(self._read, self._learn, tokens.to(self._device), state)
        except RuntimeError as error:
            self._refused = True
            reason = str(error).partition("\n")[0]
            logging.getLogger(__name__).warning(
                "segments cannot be recorded, which would be faster: %s", reason
            )
            return None
        self._recorded = key, recording
        return recording


def _write(state: State, values: State) -> None:
    """Write a state in the place of another."""
    with torch.no_grad():
        for place, value in zip(
            leaves(state, "").values(), leaves(values, "").values(), strict=True
        ):
            place.copy_(value)
