"""Time scales: after how many tokens of a text does learning from it pay, and how much?

A corpus is cut into sequences of equal length, and each of them is read from the trained weights
and the zero state. The loss at each position is then averaged over the sequences, as in Figure 2
of the paper. An interval is a percentile bootstrap over sequences: it holds 95% of the means of
as many sequences drawn again from these. What is compared was read of the same sequences, so a
gain is paired: the difference is taken within each sequence first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyneval import corpora, devices, kernels, models, provenance, storage
from dyneval.evaluation import LIMIT_FACTOR, evaluate
from dyneval.neural_cache import Base
from dyneval.predictors import Predictor
from dyneval.results import ROUNDING
from dyneval.settings import Settings, find_statistics, streams_within
from dyneval.vocabularies import Unknown

Array = NDArray[np.float64]
Span = tuple[int, int]  # scored tokens of a sequence, from and up to
ENDINGS = (".json",)
RESAMPLES = 2000
ENDS = (2.5, 97.5)  # percentiles


def check(bucket: int, last: int) -> None:
    """Refuse spans that hold nothing."""
    if bucket < 1 or last < 1:
        raise ValueError(
            f"buckets of {bucket} tokens and the last {last} of a sequence cannot be told; give "
            "1 or more of each"
        )


class Band(NamedTuple):
    """A mean over sequences for each of K spans, and its 95% interval."""

    mean: Array  # (K,)
    low: Array
    high: Array

    def bits(self) -> list[dict[str, float]]:
        """Return nats as bits, span by span."""
        values = np.stack(self, 1) / math.log(2)  # (K, 3)
        return [dict(zip(self._fields, row, strict=True)) for row in values.tolist()]


class BreakEven(NamedTuple):
    """After how many tokens the gain so far is positive and stays so; None: not within these."""

    tokens: int | None
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Timescales:
    """What each predictor expected of each sequence, and what makes it comparable."""

    run: dict[str, Any]
    nats: dict[str, Array]  # (S, P) of each predictor; the first is what others are compared with
    seconds: dict[str, float]

    @property
    def first(self) -> str:
        """Return the name of the predictor that the others are compared with."""
        return next(iter(self.nats))

    @property
    def shape(self) -> tuple[int, int]:
        """Return how many sequences there are, and how many scored tokens each has."""
        count, positions = self.nats[self.first].shape
        return count, positions

    def buckets(self, size: int) -> list[Span]:
        """Return consecutive spans of so many tokens; the last may be shorter."""
        positions = self.shape[1]
        return [(start, min(start + size, positions)) for start in range(0, positions, size)]

    def last(self, count: int) -> list[Span]:
        """Return the span of the last so many tokens, or of all if there are fewer."""
        positions = self.shape[1]
        return [(max(0, positions - count), positions)]

    def loss(self, name: str, spans: list[Span]) -> Band:
        """Return a predictor's mean nats per token in each span."""
        return self._band(_means(self.nats[name], spans))

    def gain(self, name: str, spans: list[Span]) -> Band:
        """Return by how many nats per token it is better than the first one in each span."""
        return self._band(_means(self.nats[self.first] - self.nats[name], spans))

    def break_even(self, name: str) -> BreakEven:
        """Return where the mean gain so far becomes positive for good; with its interval."""
        so_far = np.cumsum(self.nats[self.first] - self.nats[name], 1)  # (S, P)
        parts = np.array_split(self._draws, 20)  # each (100, S): all at once take much memory
        drawn = np.concatenate([_for_good(part @ so_far) for part in parts])
        low, high = np.percentile(drawn, ENDS, method="inverted_cdf")
        found = _for_good(so_far.mean(0, keepdims=True))[0]
        return BreakEven(*(int(k) if math.isfinite(k) else None for k in (found, low, high)))

    @cached_property
    def _draws(self) -> Array:
        """(R, S): how much of each drawn mean a sequence makes up."""
        count = self.shape[0]
        random = np.random.default_rng(0)
        return random.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count

    def _band(self, values: Array) -> Band:
        """(S, K) -> the mean over sequences and its interval."""
        low, high = np.percentile(self._draws @ values, ENDS, axis=0)
        return Band(values.mean(0), low, high)

    def rows(self, bucket: int) -> list[dict[str, float]]:
        """Return a row for each bucket: its positions, losses and gains in bits per token."""
        spans = self.buckets(bucket)
        rows: list[dict[str, float]] = [{"from": a + 1, "to": b} for a, b in spans]
        for name in self.nats:
            bands = {"bits_per_token": self.loss(name, spans)}
            if name != self.first:
                bands["gain"] = self.gain(name, spans)
            for what, band in bands.items():
                for row, bits in zip(rows, band.bits(), strict=True):
                    row |= {f"{name}.{what}.{key}": value for key, value in bits.items()}
        return rows

    def figures(self, last: int, break_even: bool) -> dict[str, Any]:
        """Return each predictor's loss and gain, in bits per token, over all and at the end."""
        count, positions = self.shape
        spans = {"all": [(0, positions)], "last": self.last(last)}
        found: dict[str, Any] = {}
        for name, nats in self.nats.items():
            row: dict[str, Any] = {"tokens": nats.size, "nats": math.fsum(nats.ravel().tolist())}
            for key, span in spans.items():
                row[key] = {"from": span[0][0] + 1, "to": span[0][1]}
                row[key]["bits_per_token"] = self.loss(name, span).bits()[0]
                if name != self.first:
                    row[key]["gain"] = self.gain(name, span).bits()[0]
            if break_even and name != self.first:
                row["break_even"] = self.break_even(name)._asdict()
            found[name] = row | {"seconds": round(self.seconds[name], 3)}
        return found

    def to_json(self, bucket: int, last: int, break_even: bool) -> dict[str, Any]:
        """Return the figures of each predictor, `buckets`, and `run`."""
        check(bucket, last)
        return self.figures(last, break_even) | {"buckets": self.rows(bucket), "run": self.run}

    def save(self, path: Path | str, value: dict[str, Any]) -> None:
        """Write what `to_json` returned, and every nat beside it (.npz)."""
        path = Path(path)
        storage.check_writable(path, ENDINGS)
        arrays = {f"nats.{name}": nats for name, nats in self.nats.items()}
        storage.write_arrays(path.with_suffix(".npz"), arrays)
        storage.write_json(path, value)


def _means(nats: Array, spans: list[Span]) -> Array:
    """(S, P) -> (S, K) the mean of each span."""
    return np.stack([nats[:, start:stop].mean(1) for start, stop in spans], 1)


def _for_good(so_far: Array) -> Array:
    """(R, P) gains so far -> (R,) after how many tokens each is positive for good, or infinity."""
    positions = so_far.shape[1]
    bad = so_far <= ROUNDING * np.arange(1, positions + 1)
    after = positions - np.argmax(bad[:, ::-1], 1) + 1  # behind the last bad one
    after = np.where(bad.any(1), after, 1)
    return np.where(after > positions, np.inf, after)


class Progress(NamedTuple):
    """Where a predictor stands in all its sequences."""

    name: str
    done: int  # tokens scored
    total: int
    nats: float  # per token, of those that are read side by side now


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Sequences:
    """Sequences of a corpus, each read by several predictors with one model."""

    model: str | Path
    corpus: str
    predictors: dict[str, Settings]  # the first is what the others are compared with
    split: str | None = None
    length: int = 10_000  # tokens of a sequence; the first is not scored
    count: int | None = None  # sequences; None: all that the split holds
    stats: str | Path | None = None
    unknown: Unknown | None = None
    engine: kernels.Name = "auto"
    device: str = "auto"  # cpu, cuda, or cuda where there is one

    def __post_init__(self) -> None:
        if self.length < 2 or (self.count is not None and self.count < 2):
            raise ValueError(
                f"{self.count} sequences of {self.length} tokens tell nothing; give 2 or more, of "
                "2 tokens or more"
            )
        for name in self.predictors:
            if name in ("buckets", "run"):  # a key of the result
                raise ValueError(f"a predictor cannot be named {name!r}")

    def execute(
        self,
        report: Report | None = None,
        *,
        streams: int = 1,
        memory: int | None = None,
        folder: Path | str | None = None,
        resume: bool = False,
    ) -> Timescales:
        """Read the sequences, `streams` of them side by side, or as many as fit into a memory.

        In a `folder` those that were read are kept; `resume` goes on behind them, and a later run
        may have more sequences. A predictor that diverges ends the run.
        """
        if streams < 1:
            raise ValueError(f"{streams} streams side by side read nothing; give 1 or more")
        checkpoint = models.load(self.model, devices.find(self.device))
        corpus = corpora.load(self.corpus, checkpoint.vocabulary, self.unknown)
        rows = self._cut(corpus.read(self.split).stream[0])
        stats = find_statistics(
            self.predictors.values(), checkpoint.model, models.folder_of(self.model), self.stats
        )

        streams = streams_within(memory, streams, self.predictors.values(), checkpoint.model)

        def make(name: str) -> Base:
            row = self.predictors[name]
            return row.predictor(checkpoint.model, row.reads(stats), self.engine)

        about = provenance.describe(self.model, checkpoint, corpus, self.split, stats) | {
            "length": self.length,
            "rule": {name: str(row) for name, row in self.predictors.items()},
            "predictors": {name: row.to_json() for name, row in self.predictors.items()},
            "engines": {name: make(name).engine for name in self.predictors},
        }
        shelf = _Shelf(Path(folder), about, list(self.predictors), resume) if folder else None
        found = shelf.load(*rows[:, 1:].shape) if shelf else {}
        reading = _Reading(rows, len(checkpoint.vocabulary), report)
        for start in range(0, len(rows), streams):
            # whole again if one is missing: the same company gives the same digits
            numbers = list(range(start, min(start + streams, len(rows))))
            if found.keys() >= set(numbers):
                continue
            others = len(found.keys() - numbers)
            parts = {
                # made anew: each sequence is read from the trained weights
                name: reading.read(name, make(name), numbers, others, row.segment_length)
                for name, row in self.predictors.items()
            }
            for place, k in enumerate(numbers):
                found[k] = {name: part[place] for name, part in parts.items()}
                if shelf:
                    shelf.save(k, found[k])
        every = [found[k] for k in range(len(rows))]
        about |= {"sequences": len(rows), "streams": streams}
        return Timescales(
            about,
            {name: np.stack([each[name].nats for each in every]) for name in self.predictors},
            {name: sum(each[name].seconds for each in every) for name in self.predictors},
        )

    def _cut(self, tokens: Tensor) -> Tensor:
        """(N,) tokens -> (S, length) sequences."""
        held = len(tokens) // self.length
        if held < max(2, self.count or 0):
            raise ValueError(
                f"{self.corpus} holds {held} sequences of {self.length} tokens, and "
                f"{max(2, self.count or 0)} are needed; give fewer or shorter ones"
            )
        count = self.count or held
        return tokens[: count * self.length].view(count, self.length)


class _Read(NamedTuple):
    """What a predictor expected of one sequence."""

    nats: Array  # (P,)
    seconds: float


class _Reading:
    """Sequences (S, length) on their way through one predictor after the other."""

    def __init__(self, rows: Tensor, symbols: int, report: Report | None) -> None:
        self.rows, self.report = rows, report
        self.bound = LIMIT_FACTOR * math.log(max(2, symbols))  # nats per token

    def read(
        self, name: str, predictor: Predictor, numbers: list[int], done: int, segment_length: int
    ) -> list[_Read]:
        """Return what a fresh predictor expects of some sequences, `done` others being read."""
        began = reported = time.perf_counter()
        count, positions = len(numbers), self.rows.shape[1] - 1
        nats, place = np.empty((count, positions)), 0
        for segment in evaluate(predictor, self.rows[numbers], segment_length):
            worse = ~(segment.mean(1) < self.bound)
            if worse.any():
                raise ValueError(
                    f"{name} diverged in sequence {numbers[int(worse.int().argmax())] + 1}, behind "
                    f"token {place + 1}: its probabilities left all bounds; lower the learning "
                    "rate (--learning-rate) or raise --epsilon"
                )
            nats[:, place : place + segment.shape[1]] = segment.cpu()
            place += segment.shape[1]
            now = time.perf_counter()
            if self.report and (now - reported > 0.1 or place == positions):
                read = done * positions + count * place
                mean = float(nats[:, :place].mean())
                self.report(Progress(name, read, len(self.rows) * positions, mean))
                reported = now
        seconds = (time.perf_counter() - began) / count
        return [_Read(row, seconds) for row in nats]


class _Shelf:
    """A folder of the sequences that were read, one file each."""

    def __init__(self, folder: Path, about: dict[str, Any], names: list[str], resume: bool) -> None:
        self.folder, self.names = folder, names
        storage.begin(folder, about, resume)

    def load(self, count: int, positions: int) -> dict[int, dict[str, _Read]]:
        """Return those of the first `count` sequences that are here."""
        found = {}
        for k in range(count):
            if (path := self._path(k)).exists():
                tensors, seconds = storage.read_tensors(path)
                shapes = {name: tuple(nats.shape) for name, nats in tensors.items()}
                whole = shapes == dict.fromkeys(self.names, (positions,))
                if not whole or not isinstance(seconds, dict) or shapes.keys() != seconds.keys():
                    raise ValueError(f"{path} holds no sequence of this run; give another folder")
                found[k] = {
                    name: _Read(nats.numpy(), seconds[name]) for name, nats in tensors.items()
                }
        return found

    def save(self, number: int, reads: dict[str, _Read]) -> None:
        """Keep a sequence."""
        tensors = {name: torch.from_numpy(read.nats) for name, read in reads.items()}
        seconds = {name: read.seconds for name, read in reads.items()}
        storage.write_tensors(self._path(number), tensors, seconds)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.safetensors"
