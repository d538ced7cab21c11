"""Waves: the documents of a text, read B at a time through the one loop.

Wave k holds documents kB … kB + B − 1, a row each. A row that ended stays as it is until all have;
what it has learned then goes on to the next wave, or not (`Carry`). Every token is scored once,
but for the first of a document, which nothing was read before. Where the state is carried, only
the first of a row's first document is such a token: the next document follows on the last one. A
model with a token that begins a text reads that first, and no token is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyneval import documents
from dyneval.documents import Bounds
from dyneval.evaluation import evaluate
from dyneval.predictors import Predictor
from dyneval.streams import padded

Carry = Literal["none", "weights", "weights+state"]


def check(cut: str | None, carry: str, streams: int) -> None:
    """Refuse ways to read documents that make no sense."""
    if carry not in get_args(Carry):
        raise ValueError(f"carry={carry!r} is not known; give one of {', '.join(get_args(Carry))}")
    if streams < 1:
        raise ValueError(f"{streams} streams side by side read nothing; give 1 or more")
    if cut is not None:
        documents.check(cut)
    elif carry != "none" or streams > 1:
        what = f"carry={carry!r}" if carry != "none" else f"streams={streams}"
        raise ValueError(
            f"{what} is for documents, and the text is read as one; say what a document is "
            "(--documents)"
        )


class Part(NamedTuple):
    """What was expected of one segment of a wave."""

    nats: NDArray[np.float64]  # (B, n)
    places: NDArray[np.int64]  # (B, n) in the text; −1 behind the end of a row
    wave: int
    token: int  # of each row are scored, up to and with this segment


@dataclass(frozen=True)
class Waves:
    """The tokens of a text, where its documents begin, and how to read them."""

    tokens: Tensor  # (N,)
    bounds: Bounds  # (D + 1,) as those of `Documents`
    carry: Carry = "none"
    streams: int = 1  # B, or fewer where there are fewer documents
    begin: int | None = None  # the token to read before a text, if the model has one

    @property
    def rows(self) -> int:
        """Return how many documents are read side by side."""
        return max(1, min(self.streams, len(self.bounds) - 1))

    @cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """(N,): whether something was read before each token, to predict it by."""
        found = np.ones(len(self.tokens), bool)
        if self.begin is not None:
            return found
        begin = self.bounds[:-1]
        found[begin[: self.rows] if self.carry == "weights+state" else begin] = False
        return found

    def prefix(self, count: int) -> Waves:
        """Return the first so many tokens; the last document may be cut short."""
        tokens = self.tokens[:count]
        bounds = np.unique(np.minimum(self.bounds, len(tokens)))
        return replace(self, tokens=tokens, bounds=bounds)

    def read(
        self, predictor: Predictor, segment_length: int, wave: int = 0, token: int = 0
    ) -> Iterator[Part]:
        """Yield what a predictor expects of each segment, learning from it once it is scored.

        A predictor that stands where a part ended goes on behind that part's `wave` and `token`.
        """
        for number in range(wave, -(-(len(self.bounds) - 1) // self.rows)):
            stream, first, last = self._wave(number)
            done = token if number == wave else 0
            if number and not done:
                self._begin(predictor)
            for segment in evaluate(predictor, stream[:, done:], segment_length):
                places = first + np.arange(done, done + segment.shape[1])
                done += segment.shape[1]
                places[places >= last] = -1
                yield Part(segment.cpu().double().numpy(), places, number, done)

    def _wave(self, number: int) -> tuple[Tensor, Bounds, Bounds]:
        """Return a wave's (B, T) tokens; the place of each row's first target, and its end."""
        rows, first, last = [], [], []
        count, width = len(self.bounds) - 1, self.rows
        for k in range(number * width, (number + 1) * width):
            start, end = self.bounds[[min(k, count), min(k + 1, count)]].tolist()
            row = self.tokens[start:end]
            before = self._before(k) if k < count else None
            if before is not None:
                row = torch.cat([before, row])
            rows.append(row)
            first.append(start + (before is None))
            last.append(end)
        return padded(rows), np.array(first)[:, None], np.array(last)[:, None]

    def _before(self, k: int) -> Tensor | None:
        """Return the token (1,) that is read before a document, if there is one."""
        if self.carry == "weights+state" and k >= self.rows:
            last = self.bounds[k - self.rows + 1] - 1  # of the row so far, which was not read yet
            return self.tokens[last : last + 1]
        return None if self.begin is None else self.tokens.new_full((1,), self.begin)

    def _begin(self, predictor: Predictor) -> None:
        """Bring a predictor from the end of a wave to the beginning of the next."""
        if self.carry == "none":
            predictor.reset()
        elif self.carry == "weights":
            predictor.reset(weights=False)
