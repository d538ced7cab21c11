"""Experiments: a table or a figure of the paper, as a Python file, run as far as it is missing.

A file has a docstring, `figure` (what its numbers are), `published` (the paper's rows) and `runs`:
for each scale what is studied, as values. `execute` does their stages in a folder. A stage that
is done leaves its description there: it is not done again, and another one in its place is
refused. Base models and studies are shared by the experiments of a folder.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dyneval import results, storage
from dyneval.published import Published
from dyneval.settings import FILE
from dyneval.stages import (
    SLICE,
    Base,
    Collect,
    Curve,
    Evaluate,
    Sample,
    Stage,
    Study,
    Train,
    Tune,
    Workspace,
)

SCALES = ("paper", "desk", "miniature")
RESULT = "result.json"
Part = Study | Curve | Sample


@dataclass(frozen=True)
class Experiment:
    """What an experiment's file holds."""

    name: str
    title: str
    figure: str
    published: tuple[Published, ...]
    runs: dict[str, tuple[Part, ...]]

    def begun(self, scale: str) -> dict[str, Any]:
        """Return a result that holds the paper's rows and none of ours yet, as JSON values."""
        return {
            "experiment": self.name,
            "title": self.title,
            "figure": self.figure,
            "scale": scale,
            "published": [row.to_json() for row in self.published],
            "studies": [],
            "curves": {},
            "samples": {},
        }


def load(path: Path | str) -> Experiment:
    """Return the experiment of a Python file."""
    path = Path(path)
    spec = importlib.util.spec_from_file_location(f"experiment_{path.stem}", path)
    if path.suffix != ".py" or not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"{path} is no experiment; give one of experiments/*.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        title = (module.__doc__ or path.stem).partition("\n")[0].rstrip(".")
        return Experiment(path.stem, title, module.figure, module.published, module.runs)
    except AttributeError as error:
        raise ValueError(f"{path} is no experiment: {error}") from None


def stages(parts: Sequence[Part]) -> list[Stage]:
    """Return the steps of what is studied, in order, each once."""
    found: list[Stage] = []
    for part in parts:
        study = part if isinstance(part, Study) else part.study
        steps: list[Stage] = [Train(study.base)]
        if any(row.needs_statistics for row in study.settings.values()):
            steps.append(Collect(study.base, study.statistics))
        steps.append(Tune(study))
        steps += [Evaluate(part, "valid"), Evaluate(part)] if isinstance(part, Study) else [part]
        found += [step for step in steps if step not in found]
    return found


def execute(
    experiment: Experiment, scale: str, work: Workspace, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Do what is missing of an experiment and return what it found, as JSON values.

    `only` names parts; those of others that are done already are in what is returned as well.
    """
    if scale not in experiment.runs:
        known = ", ".join(experiment.runs)
        raise ValueError(f"{experiment.name} has no scale {scale!r}; give one of {known}")
    parts = experiment.runs[scale]
    names = [part.name for part in parts]
    if unknown := set(only) - set(names):
        raise ValueError(f"there is no part {unknown.pop()!r}; give some of {', '.join(names)}")
    with locked(work.folder / experiment.name):
        for stage in stages([part for part in parts if not only or part.name in only]):
            _complete(stage, work)
        done = [part for part in parts if stages([part])[-1].marker(work).exists()]
        found = _summary(experiment, scale, done, work)
        storage.write_json(work.folder / experiment.name / RESULT, found)
    return found


def _complete(stage: Stage, work: Workspace) -> None:
    """Do what is missing of a stage."""
    marker = stage.marker(work)
    described = json.loads(json.dumps(_described(stage)))
    if not _done(marker, described):
        # a base model may be another experiment's work at the same time
        with locked(marker.parent):
            if not _done(marker, described):
                stage.run(work)
                storage.write_json(marker, described)


def _described(value: Any) -> Any:
    """Return a stage as JSON values: what it is and the fields that are not left as they are.

    So a field that is added later, and left at its default, makes no other stage of it.
    """
    if isinstance(value, dict):
        return {key: _described(each) for key, each in value.items()}
    if not is_dataclass(value):
        return value
    named: dict[str, Any] = {"kind": type(value).__name__}
    for each in fields(value):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        own = getattr(value, each.name)
        if own != default:
            named[each.name] = _described(own)
    return named


def _done(marker: Path, described: dict[str, Any]) -> bool:
    """Tell whether a stage was done, as it is described now."""
    if not marker.exists():
        return False
    if storage.read_json(marker) != described:
        raise ValueError(
            f"{marker} is of a step that was described in another way; move {marker.parent} away "
            "to do it again, or give another --folder"
        )
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a folder for this process; where another one has it, that is an error."""
    import fcntl  # not on Windows, where the rest works

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"{folder} is being worked on: the first run (process {file.read() or '?'}) is "
                "running; wait for its end, or give another --folder"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


# What was found


def _summary(
    experiment: Experiment, scale: str, parts: Sequence[Part], work: Workspace
) -> dict[str, Any]:
    found = experiment.begun(scale)
    for part in parts:
        if isinstance(part, Study):
            found["studies"].append(_study(part, work.study(part)))
        elif isinstance(part, Curve):
            found["curves"][part.name] = storage.read_json(work.own(part.name) / "curve.json")
        else:
            found["samples"][part.name] = storage.read_json(work.own(part.name) / "samples.json")
    named: dict[str, Any] = _without_paths(found, _names(parts))
    return named


def _names(parts: Sequence[Part]) -> dict[str, str]:
    """Return what the models and texts of an experiment are called, by their files' last names."""
    here = Workspace(Path("/"), "")
    bases = [part.base if isinstance(part, Study) else part.study.base for part in parts]
    corpora = [base.corpus for base in bases]
    corpora += [part.corpus for part in parts if not isinstance(part, Study)]
    models = {str(here.model(base)): base.name for base in bases}
    return models | {here.text(corpus): corpus for corpus in corpora}


def _without_paths(value: Any, names: dict[str, str]) -> Any:
    """Return a result that names its models and texts, wherever their files lay."""
    if isinstance(value, dict):
        return {key: _without_paths(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each, names) for each in value]
    if isinstance(value, str):
        found = (name for end, name in names.items() if end[0] == "/" and value.endswith(end))
        return next(found, value)
    return value


def _study(study: Study, folder: Path) -> dict[str, Any]:
    """Return what a study found: figures of both splits, gains, settings, and how they came."""
    read = {split: storage.read_json(folder / f"{split}.json") for split in ("valid", "test")}
    tuning = storage.read_json(folder / FILE)["tuning"]
    run = read["test"].pop("run")
    kind = run["vocabulary"]["kind"]
    quoted = results.QUOTED[kind]
    rows = {}
    for name, figures in read["test"].items():
        if name in tuning:
            nats = tuning[name]["validation_nats"]
            valid = math.exp(nats) if kind == "words" else nats / math.log(2)
        else:
            valid = read["valid"][name][quoted]
        rows[name] = {
            "valid": valid,
            "test": figures[quoted],
            "settings": run["predictors"][name],
            **{key: figures[key] for key in ("gain", "diverged", "seconds") if key in figures},
        }
    return {
        "name": study.name,
        "role": study.role,
        "rows": rows,
        "plan": tuning[next(iter(tuning))]["plan"] | {"tokens": read["valid"]["run"]["tokens"]},
        "tuning_seconds": {name: tuning[name]["seconds"] for name in tuning},
        "run": {key: value for key, value in run.items() if key not in ("predictors", "rule")},
    }


# In seconds


def miniature(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the same work on a slice of the bundled text with tiny models: it runs in seconds."""
    return tuple(
        _small_study(part)
        if isinstance(part, Study)
        else replace(
            part, study=_small_study(part.study), corpus=f"{SLICE}:5000", **_SHORT[type(part)]
        )
        for part in parts
    )


_SHORT: dict[type, dict[str, Any]] = {
    Curve: {"length": 60, "count": 2, "bucket": 20},
    Sample: {"conditioning": 30, "length": 10, "seeds": (1, 2)},
}


def _small_study(study: Study) -> Study:
    wanted = study.statistics
    few = replace(wanted, batch_size=min(wanted.batch_size, 4), batches=min(wanted.batches or 4, 4))
    plan = replace(study.plan, trials=min(study.plan.trials, 2), prefix=40, confirm=1)
    base = _small_base(study.base)
    return replace(study, base=base, plan=plan, statistics=few, validation=60, test=90)


def _small_base(base: Base) -> Base:
    if base.recipe is None:
        return replace(base, corpus=f"{SLICE}:5000")
    model = base.recipe.model | {"embedding_size": 8, "units": 8}
    recipe = replace(
        base.recipe,
        model=model,
        epochs=1,
        fine_tune_epochs=min(base.recipe.fine_tune_epochs, 1),
        batch_size=4,
        sequence_length=32,
        precision="float32",
    )
    return Base(base.name, f"{SLICE}:5000", recipe, "bytes")
