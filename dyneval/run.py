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
from numpy.typing import NDArray

from dyneval import devices, documents, kernels, models, movement, provenance, storage, waves
from dyneval.corpora import Corpus
from dyneval.evaluation import LIMIT_FACTOR
from dyneval.gradient_stats import Statistics
from dyneval.models import Checkpoint
from dyneval.models.huggingface import Loading
from dyneval.predictors import Predictor
from dyneval.results import ByDocument, Result, Score, Scored
from dyneval.settings import Settings, find_statistics, streams_within
from dyneval.vocabularies import Unknown
from dyneval.waves import Carry, Part, Waves

FirstToken = Literal["unscored", "uniform"]


class Progress(NamedTuple):
    """Where a predictor stands in a text."""

    name: str
    done: int  # tokens scored
    total: int
    nats: float  # summed so far
    seconds: float


Report = Callable[[Progress], None]
Nats = NDArray[np.float64]


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
    documents: str | None = None  # lines, blank-lines, files or chunks:N; None: one text
    carry: Carry = "none"  # what goes on from a document to the next
    streams: int = 1  # documents to read side by side
    memory: int | None = None  # bytes for what adapts; fewer are read at a time if need be
    loading: Loading = Loading()  # of a model of Hugging Face

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"a limit of {self.limit} tokens leaves nothing to read")
        if self.first_token not in ("unscored", "uniform"):
            raise ValueError(
                f"first_token={self.first_token!r} is not known; give unscored or uniform"
            )
        waves.check(self.documents, self.carry, self.streams)
        for name in self.predictors:
            # keys of the result, and a file
            if name in ("run", "documents") or Path(name).name != name:
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
        checkpoint = models.load(self.model, devices.find(self.device), self.loading)
        vocabulary = checkpoint.vocabulary
        corpus = documents.load(self.corpus, vocabulary, self.unknown, self.documents)
        texts = documents.read(corpus, self.split, self.documents, self.limit)
        tokens, streams = texts.text.stream[0], self._streams(checkpoint)
        plan = Waves(tokens, texts.bounds, self.carry, streams, vocabulary.begin)
        scored = self._scored(plan)
        stats = find_statistics(
            self.predictors.values(), checkpoint.model, models.folder_of(self.model), self.stats
        )
        predictors = {
            name: settings.predictor(checkpoint.model, settings.reads(stats), self.engine)
            for name, settings in self.predictors.items()
        }
        about = self._about(checkpoint, corpus, len(texts.text), stats)
        about["engines"] = {name: predictor.engine for name, predictor in predictors.items()}
        store = _Store(Path(folder), about, resume, save_every) if folder else None
        scores = {}
        for name, settings in self.predictors.items():
            # popped: what one has learned is out of memory when the next begins
            reading = _Reading(name, predictors.pop(name), store, report)
            score = reading.score(plan, settings.segment_length, len(vocabulary))
            scores[name] = replace(score, nats=_unbroken(score.nats[scored]))
        columns = (getattr(texts.text, name)[scored] for name in Scored.__annotations__)
        by = None
        if self.documents:
            by = ByDocument(texts.numbers[scored], np.array(texts.labels(vocabulary)))
        return Result(about, Scored(*columns), scores, by, vocabulary)

    def _streams(self, checkpoint: Checkpoint) -> int:
        """Return how many documents to read side by side."""
        rows = self.predictors.values()
        streams = streams_within(self.memory, self.streams, rows, checkpoint.model)
        if streams < self.streams and self.carry != "none":
            raise ValueError(
                f"{self.streams} streams do not fit into {self.memory:,} bytes, and what is "
                "carried from document to document depends on their number; give --streams "
                f"{streams}, or more --memory"
            )
        return streams

    def _scored(self, plan: Waves) -> NDArray[np.bool_]:
        """(N,): which tokens of the text are scored."""
        count = len(plan.tokens)
        uniform = self.first_token == "uniform"
        scored = np.ones(count, bool) if uniform else plan.predicted
        if not scored.any() or (count < 2 and not uniform):
            where = "" if self.documents is None else f" (documents: {len(plan.bounds) - 1})"
            raise ValueError(
                f"{self.corpus} has too few tokens to read: {count}{where}, and needed are "
                + ("1 or more" if uniform else "2 or more, since the first of a text is not scored")
            )
        return scored

    def _about(
        self,
        checkpoint: Checkpoint,
        corpus: Corpus,
        tokens: int,
        stats: Statistics,
    ) -> dict[str, Any]:
        """Return all that makes the result comparable, as JSON values."""
        rules = {name: str(row) for name, row in self.predictors.items()}
        return provenance.describe(self.model, checkpoint, corpus, self.split, stats) | {
            "tokens": tokens,
            "limit": self.limit,
            "documents": self.documents,
            "carry": self.carry,
            "streams": self.streams,
            "first_token": self.first_token,
            "rule": rules,
            "predictors": {name: row.to_json() for name, row in self.predictors.items()},
        }


def _unbroken(nats: Nats) -> Nats:
    """Return nats up to the first that is missing, where a predictor diverged."""
    missing = np.isnan(nats)
    return nats[: missing.argmax()] if missing.any() else nats


class _Store:
    """A folder in which a run keeps what it reached, one file a predictor."""

    def __init__(self, folder: Path, about: dict[str, Any], resume: bool, every: float) -> None:
        self.folder, self.every = folder, every
        storage.begin(folder, about, resume)

    def path(self, name: str) -> Path:
        """Return the file of a predictor."""
        return self.folder / f"{name}.safetensors"

    def save(self, name: str, predictor: Predictor, nats: Nats, progress: dict[str, Any]) -> None:
        """Keep where a predictor stands; one that ended needs its scores only."""
        state = {} if progress["ended"] else predictor.state_dict()
        tensors = {"nats": torch.from_numpy(nats)}
        tensors |= {f"predictor.{k}": value for k, value in state.items()}
        storage.write_tensors(self.path(name), tensors, progress)

    def load(self, name: str, predictor: Predictor) -> tuple[Nats, dict[str, Any]] | None:
        """Bring a predictor to where it stood -> its nats, and how far it is."""
        if not self.path(name).exists():
            return None
        tensors, progress = storage.read_tensors(self.path(name))
        if not isinstance(progress, dict) or "nats" not in tensors:
            raise ValueError(f"{self.path(name)} holds no part of a run; give another folder")
        nats = tensors.pop("nats").numpy()
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

    def score(self, plan: Waves, segment_length: int, symbols: int) -> Score:
        """Return the nats of every token of a text, NaN from where the predictor diverged.

        A token that nothing was read before is a guess among all symbols.
        """
        nats = np.where(plan.predicted, np.nan, math.log(symbols))
        at: dict[str, Any] = {"seconds": 0.0, "ended": False, "diverged": "", "place": (0, 0)}
        if self.store and (before := self.store.load(self.name, self.predictor)):
            nats, at = before
            if at["ended"]:
                return Score(nats, at["seconds"], at["diverged"], at.get("moved", {}))
        read, count = nats[plan.predicted], int(plan.predicted.sum())
        done, total = int(np.isfinite(read).sum()), float(np.nansum(read))
        began = reported = saved = time.perf_counter()
        began -= at["seconds"]
        bound = LIMIT_FACTOR * math.log(max(2, symbols)) * segment_length
        for part in plan.read(self.predictor, segment_length, *at["place"]):
            real = part.places >= 0
            sums = np.where(real, part.nats, 0.0).sum(1)
            if not (sums < bound).all():
                at["diverged"] = self._diverged(plan, part, int((sums < bound).argmin()))
                break
            nats[part.places[real]] = part.nats[real]
            done, total = done + int(real.sum()), total + float(sums.sum())
            now = time.perf_counter()
            if self.report and now - reported > 0.1:
                self.report(Progress(self.name, done, count, total, now - began))
                reported = now
            if self.store and now - saved > self.store.every and done < count:
                at |= {"seconds": now - began, "place": (part.wave, part.token)}
                self.store.save(self.name, self.predictor, nats, at)
                saved = now
        at |= {"seconds": time.perf_counter() - began, "ended": True}
        if self.report:
            self.report(Progress(self.name, done, count, total, at["seconds"]))
        at["moved"] = movement.moved(self.predictor)
        if self.store:
            self.store.save(self.name, self.predictor, nats, at)
        return Score(nats, at["seconds"], at["diverged"], at["moved"])

    def _diverged(self, plan: Waves, part: Part, row: int) -> str:
        # a finite segment went over the bound as a whole
        wrong = ~np.isfinite(part.nats[row]) & (part.places[row] >= 0)
        first = int(wrong.argmax())
        token = part.token - part.nats.shape[1] + first + 1
        one = len(plan.bounds) == 2
        where = "" if one else f" of document {part.wave * plan.rows + row + 1}"
        return (
            f"{self.name} diverged at token {token}{where}: its probabilities left all "
            "bounds; lower the learning rate (--learning-rate) or raise --epsilon"
        )
