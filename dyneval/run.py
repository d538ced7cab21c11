"""Runs: a frozen description of an evaluation, executed to a `Result`.

A `Run` names a model, a text, and the predictors to compare on it. `execute` reads the text once
with each of them, through the one loop. In a folder it keeps what it reached, and a killed run
goes on from there to the same digits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dyneval import corpora, devices, kernels, models, movement, provenance, storage
from dyneval.evaluation import LIMIT_FACTOR, evaluate
from dyneval.gradient_stats import GradientStats
from dyneval.models import Checkpoint
from dyneval.predictors import Predictor
from dyneval.results import Result, Score, Scored
from dyneval.settings import Settings, find_statistics
from dyneval.vocabularies import Unknown

FirstToken = Literal["unscored", "uniform"]


class Progress(NamedTuple):
    """Where a predictor stands in a text."""

    name: str
    done: int  # tokens scored
    total: int
    nats: float  # summed so far
    seconds: float


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Run:
    """One text, read by several predictors with one model."""

    model: str | Path
    corpus: str
    predictors: dict[str, Settings]
    split: str | None = None
    stats: str | Path | None = None
    unknown: Unknown | None = None
    first_token: FirstToken = "unscored"
    limit: int | None = None  # tokens of the split to read
    engine: kernels.Name = "auto"
    device: str = "auto"  # cpu, cuda, or cuda where there is one

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"a limit of {self.limit} tokens leaves nothing to read")
        if self.first_token not in ("unscored", "uniform"):
            raise ValueError(
                f"first_token={self.first_token!r} is not known; give unscored or uniform"
            )
        for name in self.predictors:
            if name == "run" or Path(name).name != name:  # a key of the result, and a file
                raise ValueError(f"a predictor cannot be named {name!r}")

    def execute(
        self,
        report: Report | None = None,
        *,
        folder: Path | str | None = None,
        resume: bool = False,
        save_every: float = 30.0,
    ) -> Result:
        """Score the text with each predictor.

        With a `folder`, what was reached is kept there every `save_every` seconds; `resume` goes
        on from it. A predictor that diverges keeps its scores up to there, and the others go on.
        """
        checkpoint = models.load(self.model, devices.find(self.device))
        corpus = corpora.load(self.corpus, checkpoint.vocabulary, self.unknown)
        text = corpus.read(self.split)[: self.limit]
        first = 0 if self.first_token == "uniform" else 1
        if len(text) <= first:
            raise ValueError(
                f"{self.corpus} has too few tokens to read: {len(text)}, and needed are "
                f"{first + 1} or more" + ", since the first of a text is not scored" * first
            )
        stats = find_statistics(
            self.predictors.values(), checkpoint.model, models.folder_of(self.model), self.stats
        )
        predictors = {
            name: settings.predictor(checkpoint.model, stats, self.engine)
            for name, settings in self.predictors.items()
        }
        about = self._about(checkpoint, corpus, len(text), stats)
        about["engines"] = {name: predictor.engine for name, predictor in predictors.items()}
        store = _Store(Path(folder), about, resume, save_every) if folder else None
        scores = {}
        for name, settings in self.predictors.items():
            # popped: what one has learned is out of memory when the next begins
            reading = _Reading(name, predictors.pop(name), store, report)
            score = reading.score(text.stream, settings.segment_length, len(checkpoint.vocabulary))
            if first == 0:
                uniform = math.log(len(checkpoint.vocabulary))
                score = replace(score, nats=np.concatenate([[uniform], score.nats]))
            scores[name] = score
        scored = Scored(*(getattr(text, name)[first:] for name in Scored.__annotations__))
        return Result(about, scored, scores, vocabulary=checkpoint.vocabulary)

    def _about(
        self,
        checkpoint: Checkpoint,
        corpus: corpora.Corpus,
        tokens: int,
        stats: GradientStats | None,
    ) -> dict[str, Any]:
        """Return all that makes the result comparable, as JSON values."""
        rules = {name: str(row) for name, row in self.predictors.items()}
        return provenance.describe(self.model, checkpoint, corpus, self.split, stats) | {
            "tokens": tokens,
            "limit": self.limit,
            "first_token": self.first_token,
            "rule": rules,
            "predictors": {name: row.to_json() for name, row in self.predictors.items()},
        }


class _Store:
    """A folder in which a run keeps what it reached, one file a predictor."""

    def __init__(self, folder: Path, about: dict[str, Any], resume: bool, every: float) -> None:
        self.folder, self.every = folder, every
        storage.begin(folder, about, resume)

    def path(self, name: str) -> Path:
        """Return the file of a predictor."""
        return self.folder / f"{name}.safetensors"

    def save(self, name: str, predictor: Predictor, nats: Tensor, progress: dict[str, Any]) -> None:
        """Keep where a predictor stands; one that ended needs its scores only."""
        state = {} if progress["ended"] else predictor.state_dict()
        tensors = {"nats": nats} | {f"predictor.{k}": value for k, value in state.items()}
        storage.write_tensors(self.path(name), tensors, progress)

    def load(self, name: str, predictor: Predictor) -> tuple[Tensor, dict[str, Any]]:
        """Bring a predictor to where it stood -> its nats, and how far it is."""
        if not self.path(name).exists():
            return torch.zeros(0, dtype=torch.float64), {"seconds": 0.0, "ended": False}
        tensors, progress = storage.read_tensors(self.path(name))
        if not isinstance(progress, dict) or "nats" not in tensors:
            raise ValueError(f"{self.path(name)} holds no part of a run; give another folder")
        nats = tensors.pop("nats")
        if not progress["ended"]:
            predictor.load_state_dict(
                {name.removeprefix("predictor."): value for name, value in tensors.items()}
            )
        return nats, progress


class _Reading:
    """One predictor on its way through a text."""

    def __init__(
        self, name: str, predictor: Predictor, store: _Store | None, report: Report | None
    ) -> None:
        self.name, self.predictor, self.store, self.report = name, predictor, store, report

    def score(self, stream: Tensor, segment_length: int, symbols: int) -> Score:
        """Return the nats of every token of a (1, T) stream but the first."""
        nats = torch.empty(stream.shape[1] - 1, dtype=torch.float64)
        done, total, diverged, already = 0, 0.0, "", 0.0
        if self.store:
            before, progress = self.store.load(self.name, self.predictor)
            done, already = len(before), progress["seconds"]
            diverged = progress.get("diverged", "")
            nats[:done] = before
            total = before.sum().item()
            if progress["ended"]:
                return Score(before.numpy(), already, diverged, progress.get("moved", {}))
        began = reported = saved = time.perf_counter()
        bound = LIMIT_FACTOR * math.log(max(2, symbols)) * segment_length
        for segment in evaluate(self.predictor, stream[:, done:], segment_length):
            segment_sum = segment.sum().item()
            if not segment_sum < bound:
                diverged = self._diverged(done, segment[0])
                break
            nats[done : done + segment.shape[1]] = segment[0]
            done, total = done + segment.shape[1], total + segment_sum
            now = time.perf_counter()
            if self.report and now - reported > 0.1:
                self.report(Progress(self.name, done, len(nats), total, already + now - began))
                reported = now
            if self.store and now - saved > self.store.every and done < len(nats):
                self._save(nats[:done], already + now - began, ended=False)
                saved = now
        seconds = already + time.perf_counter() - began
        if self.report:
            self.report(Progress(self.name, done, len(nats), total, seconds))
        moved = movement.moved(self.predictor)
        self._save(nats[:done], seconds, ended=True, diverged=diverged, moved=moved)
        return Score(nats[:done].numpy(), seconds, diverged, moved)

    def _save(self, nats: Tensor, seconds: float, **progress: Any) -> None:
        if self.store:
            progress["seconds"] = seconds
            self.store.save(self.name, self.predictor, nats, progress)

    def _diverged(self, done: int, segment: Tensor) -> str:
        # a finite segment went over the bound as a whole
        first = int((~torch.isfinite(segment)).int().argmax())
        return (
            f"{self.name} diverged at token {done + first + 1}: its probabilities left all "
            "bounds; lower the learning rate (--learning-rate) or raise --epsilon"
        )
