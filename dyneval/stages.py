"""Stages: the steps of an experiment, as data that say what to do and know whether it was done.

A stage reads files of a folder and writes others there, through the functions that the commands
call. One that was killed goes on where it stood, or begins again, to the same numbers; its marker
is the file that says it is done. `experiments` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dyneval import (
    collection,
    corpora,
    devices,
    gradient_stats,
    kernels,
    models,
    storage,
    targets,
    training,
    tuning,
)
from dyneval.generation import Sampling, Writing
from dyneval.recipes import Recipe
from dyneval.run import Run
from dyneval.settings import Settings, default_length, find_statistics, read
from dyneval.timescales import Sequences
from dyneval.tuning import Plan
from dyneval.vocabularies import Kind

Report = Callable[[str, float, float, str], None]  # what, done, of how much, a figure


@dataclass(frozen=True)
class Workspace:
    """Where the stages of an experiment work, and with what."""

    folder: Path
    name: str  # of the experiment
    device: str = "auto"
    engine: kernels.Name = "auto"
    report: Report = lambda what, done, total, figure: None

    def model(self, base: Base) -> Path:
        """Return the folder of a base model, which experiments share."""
        return self.folder / "models" / base.name

    def study(self, study: Study) -> Path:
        """Return the folder of a study, which experiments share as well."""
        return self.folder / "studies" / study.name

    def own(self, name: str) -> Path:
        """Return the folder of a part of this experiment."""
        return self.folder / self.name / name

    def text(self, corpus: str) -> str:
        """Return what `corpora.load` takes: a slice of the bundled text is a file here."""
        slice_, _, size = corpus.partition(":")
        return str(self.folder / "texts" / f"{size}.txt") if slice_ == SLICE and size else corpus


class Stage(Protocol):
    """A step: what it is called, where its marker lies, and what it does."""

    @property
    def title(self) -> str:
        """Return what the step does, in a word or two."""
        ...

    def marker(self, work: Workspace) -> Path:
        """Return the file that says it is done; its folder is locked meanwhile."""
        ...

    def run(self, work: Workspace) -> None:
        """Do it, or what is missing of it."""
        ...


SLICE = "sample"  # "sample:4000" is a corpus of its first 4,000 bytes


@dataclass(frozen=True)
class Base:
    """A base model: the recipe that trains it, or a model that is there already."""

    name: str  # its folder among the models
    corpus: str
    recipe: Recipe | None = None
    vocabulary: Kind | None = None
    source: str = ""  # a checkpoint to take instead


@dataclass(frozen=True)
class Statistics:
    """What gradient statistics are collected over; None: the whole training split."""

    batch_size: int = 100
    batches: int | None = None
    segment_length: int | None = None  # default: that of the vocabulary
    target: str = targets.ALL  # which weights they are of

    @property
    def file(self) -> str:
        """Return the name of the file in the model's folder."""
        whole = Path(gradient_stats.file_of(self.target))
        parts = (self.batch_size, self.batches or "all", self.segment_length or "default")
        named = whole.stem + "-" + "-".join(map(str, parts)) + whole.suffix
        return whole.name if self._by_default else named

    def given(self, model: Path) -> Path | None:
        """Return the file to read in a model's folder; None: the one that is read by default."""
        return None if self._by_default else model / self.file

    @property
    def _by_default(self) -> bool:
        return self == Statistics(target=self.target)


@dataclass(frozen=True)
class Study:
    """Rows that one base model gives: tuned alike on validation, then tested once."""

    name: str
    role: str  # the paper's model that it stands for
    base: Base
    rows: dict[str, dict[str, Any]]  # fields of `Settings`; `static` is there without being named
    plan: Plan = field(default_factory=Plan)  # trials of each row
    statistics: Statistics = field(default_factory=Statistics)
    validation: int | None = None  # tokens of the validation split; None: all
    test: int | None = None  # and of the test split

    @property
    def settings(self) -> dict[str, Settings]:
        """Return where the tuning of each row begins."""
        return {name: Settings(**row) for name, row in self.rows.items()}

    def tuned(self, work: Workspace) -> dict[str, Settings]:
        """Return the rows as they were tuned."""
        return read(work.study(self) / "settings.json")


@dataclass(frozen=True)
class Train:
    """Train a base model, or take the one that is there."""

    base: Base

    @property
    def title(self) -> str:
        """Return what the step does."""
        return f"training of {self.base.name}"

    def marker(self, work: Workspace) -> Path:
        """Return the file that says it is done."""
        return work.model(self.base) / "trained.json"

    def run(self, work: Workspace) -> None:
        """Train from wherever it stands; a model without a training beside it is complete."""
        base, folder = self.base, work.model(self.base)
        _cut(work, base.corpus)
        if base.source:
            models.save(folder, models.load(base.source))
        elif (folder / "config.json").exists() and not (folder / training.STATE).exists():
            made = models.load(folder).about.get("recipe")
            if made is not None and base.recipe and Recipe(**made) != base.recipe:
                raise ValueError(
                    f"{folder} holds a model of another recipe than {base.name}; move it away"
                )
        elif base.recipe is None:
            raise ValueError(f"{base.name} has no recipe; put the checkpoint into {folder}")
        else:
            corpus = corpora.load(work.text(base.corpus), base.vocabulary)
            task = training.start(base.recipe, corpus, folder, resume=True, device=work.device)
            if not task.step:
                task.save()  # so that a model without it was not begun here
            for at in task.run():
                what = f"{self.title}, epoch {at.epoch + 1}"
                work.report(what, at.epoch_step, at.epoch_steps, f"{at.nats:.3f} nats")


@dataclass(frozen=True)
class Collect:
    """Collect gradient statistics of a base model on its training text."""

    base: Base
    statistics: Statistics

    @property
    def title(self) -> str:
        """Return what the step does."""
        return f"statistics of {self.base.name}"

    def marker(self, work: Workspace) -> Path:
        """Return the file that says it is done."""
        return (work.model(self.base) / self.statistics.file).with_suffix(".json")

    def run(self, work: Workspace) -> None:
        """Collect from the start: nothing is kept before the end."""
        wanted, folder = self.statistics, work.model(self.base)
        path = folder / wanted.file
        checkpoint = _load(work, self.base)
        text = corpora.load(work.text(self.base.corpus), checkpoint.vocabulary)
        length = wanted.segment_length or default_length(checkpoint.vocabulary)
        collection.collect(
            targets.parse(wanted.target).of(checkpoint.model),
            text,
            length,
            batch_size=wanted.batch_size,
            batches=wanted.batches,
            report=lambda done, total: work.report(self.title, done, total, ""),
        ).save(path)


@dataclass(frozen=True)
class Tune:
    """Tune each row of a study on the validation split, with one budget."""

    study: Study

    @property
    def title(self) -> str:
        """Return what the step does."""
        return f"tuning of {self.study.name}"

    def marker(self, work: Workspace) -> Path:
        """Return the file that says it is done."""
        return work.study(self.study) / "tuned.json"

    def run(self, work: Workspace) -> None:
        """Tune from the first trial that no journal holds."""
        study, path = self.study, work.study(self.study) / "settings.json"
        checkpoint = _load(work, study.base)
        rows, model = study.settings, work.model(study.base)
        stats = find_statistics(
            rows.values(), checkpoint.model, model, study.statistics.given(model)
        )

        def report(name: str, at: tuning.Progress) -> None:
            what = f"{name} ({study.name}), trial {at.trial + 1} of {at.trials}"
            work.report(what, at.done, at.total, f"{at.nats:.3f} nats")

        tuning.tune_rows(
            rows,
            checkpoint,
            stats,
            corpora.load(work.text(study.base.corpus), checkpoint.vocabulary),
            "valid",
            study.plan,
            path,
            report,
            study.validation,
            work.engine,
        )


@dataclass(frozen=True)
class Evaluate:
    """Read a split with the rows of a study, as they were tuned, and with the static model."""

    study: Study
    split: str = "test"

    @property
    def title(self) -> str:
        """Return what the step does."""
        return f"{self.study.name} on {self.split}"

    def marker(self, work: Workspace) -> Path:
        """Return the file that says it is done."""
        return work.study(self.study) / f"read-{self.split}.json"

    def run(self, work: Workspace) -> None:
        """Read on from wherever each predictor stands; the result lies beside the settings."""
        study, folder = self.study, work.study(self.study)
        test = self.split == "test"
        rows = study.tuned(work) if test else {}
        length = default_length(models.load_vocabulary(work.model(study.base)))
        task = Run(
            work.model(study.base),
            work.text(study.base.corpus),
            {"static": Settings(length)} | rows,
            self.split,
            study.statistics.given(work.model(study.base)),
            limit=study.test if test else study.validation,
            engine=work.engine,
            device=work.device,
        )
        result = task.execute(
            lambda at: work.report(f"{at.name} ({self.title})", at.done, at.total, ""),
            folder=folder / f"reading-{self.split}",
            resume=True,
        )
        result.save(folder / f"{self.split}.json")


@dataclass(frozen=True)
class Curve:
    """Read many sequences with the final rule, tuned in a study: loss by position."""

    name: str
    study: Study
    row: str
    corpus: str
    split: str
    length: int = 10_000
    count: int | None = None
    bucket: int = 100
    streams: int = 1

    @property
    def title(self) -> str:
        """Return what the step does."""
        return f"sequences of {self.name}"

    def marker(self, work: Workspace) -> Path:
        """Return the file that says it is done."""
        return work.own(self.name) / "read.json"

    def run(self, work: Workspace) -> None:
        """Read on from the first sequence that is missing."""
        base, folder = self.study.base, work.own(self.name)
        _cut(work, self.corpus)
        row = self.study.tuned(work)[self.row]
        task = Sequences(
            work.model(base),
            work.text(self.corpus),
            {"static": Settings(row.segment_length), "dynamic": row},
            self.split,
            self.length,
            self.count,
            self.study.statistics.given(work.model(base)),
            engine=work.engine,
            device=work.device,
        )
        found = task.execute(
            lambda at: work.report(f"{at.name} ({self.name})", at.done, at.total, ""),
            streams=self.streams,
            folder=folder / "reading",
            resume=True,
        )
        found.save(folder / "curve.json", found.to_json(self.bucket, self.length // 5, True))


@dataclass(frozen=True)
class Sample:
    """Write on from a text, with the static model and with one that learns."""

    name: str
    study: Study
    row: str
    corpus: str
    split: str
    conditioning: int = 10_000  # tokens
    length: int = 300  # tokens to write
    seeds: tuple[int, ...] = (1, 2, 3)

    @property
    def title(self) -> str:
        """Return what the step does."""
        return f"samples of {self.name}"

    def marker(self, work: Workspace) -> Path:
        """Return the file that says it is done."""
        return work.own(self.name) / "written.json"

    def run(self, work: Workspace) -> None:
        """Write from the start: nothing is kept before the end."""
        base, found = self.study.base, {}
        _cut(work, self.corpus)
        row = self.study.tuned(work)[self.row]
        for name, settings in {"static": Settings(row.segment_length), "dynamic": row}.items():
            task = Writing(
                work.model(base),
                work.text(self.corpus),
                settings,
                self.split,
                limit=self.conditioning,
                length=self.length,
                sampling=Sampling(),
                seeds=self.seeds,
                known=work.text(self.corpus),
                stats=self.study.statistics.given(work.model(base)),
                engine=work.engine,
                device=work.device,
            )
            begun = task.begin(self._reporter(name, work))
            texts = {seed: "".join(pieces) for seed, pieces in begun.samples()}
            found[name] = begun.to_json(texts)
        storage.write_json(work.own(self.name) / "samples.json", found)

    def _reporter(self, name: str, work: Workspace) -> Callable[[int, int], None]:
        return lambda done, total: work.report(f"{name} ({self.name})", done, total, "")


def _load(work: Workspace, base: Base) -> models.Checkpoint:
    return models.load(work.model(base), devices.find(work.device))


def _cut(work: Workspace, corpus: str) -> None:
    """Write the file of a slice of the bundled text, if a corpus is one and it is missing."""
    path = Path(work.text(corpus))
    if str(path) != corpus and not path.exists():
        with storage.replacing(path) as temporary:
            size = int(corpus.partition(":")[2])
            temporary.write_bytes(corpora.load(SLICE).raw("all")[:size])
