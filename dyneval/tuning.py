"""Tune a predictor's settings on the validation split: η, λ, and on request ε and n.

Trials read a prefix and are given up early where they fall behind the median (Optuna); the best
of them are confirmed on the whole split. A journal holds every trial, so that a tuning that was
stopped goes on as if it had not been: a trial depends on the seed and the finished trials only.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from dyneval import devices, kernels, settings, storage
from dyneval import documents as documents_
from dyneval.corpora import Corpus
from dyneval.gradient_stats import Statistics, Stats
from dyneval.models import Checkpoint, fingerprint
from dyneval.settings import Settings
from dyneval.waves import Carry, Waves, check

VARIED = ("learning_rate", "decay_rate")
MAY_VARY = (*VARIED, "epsilon", "segment_length")
GRID = tuple(  # η and λ, the authors', of their rule
    (rate, decay)
    for rate in (3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4)
    for decay in (1e-3, 2e-3, 3e-3, 5e-3)
)
LEAST = 3e-4  # λ; a little below, it is 0
CHECKS = 8  # how often a trial is compared with the others on its way


@dataclass(frozen=True)
class Plan:
    """How much to try; equal for every row of a comparison."""

    trials: int = 12  # but a grid's are all of its pairs
    prefix: int = 20_000  # tokens that a trial reads
    confirm: int = 2  # trials that read the whole split
    vary: tuple[str, ...] = VARIED
    seed: int = 1
    sampler: Literal["tpe", "grid"] = "tpe"  # grid: η and λ of `GRID`, each pair once

    def __post_init__(self) -> None:
        if self.sampler not in ("tpe", "grid"):
            raise ValueError(f"there is no sampler {self.sampler!r}; give tpe or grid")
        if self.sampler == "grid":
            if self.vary != VARIED:
                raise ValueError("the authors' grid is of η and λ; vary these two, or sample tpe")
            object.__setattr__(self, "trials", len(GRID))
        if self.trials < 1 or self.confirm < 1 or self.prefix < 2:
            raise ValueError("a tuning needs at least 1 trial, 1 to confirm and 2 tokens to read")
        for name in self.vary:
            if name not in MAY_VARY:
                raise ValueError(f"{name} cannot be tuned; give some of {', '.join(MAY_VARY)}")


class Progress(NamedTuple):
    """Where a tuning stands."""

    trial: int  # from 0; those that confirm are counted on
    trials: int
    done: int  # tokens read
    total: int
    nats: float  # mean per token so far
    best: float | None  # the best finished trial's


Report = Callable[[Progress], None]


class Tuned(NamedTuple):
    """The best settings, and all that was tried."""

    settings: Settings
    record: dict[str, Any]


def suggest(trial: Any, settings: Settings, vary: tuple[str, ...]) -> Settings:
    """Return the settings of a trial, from ranges that hold those that tuning begins with.

    The lowest sixth of the range of λ means λ = 0.
    """
    values: dict[str, Any] = {}
    if settings.rule is not None:
        rms = "rms" in settings.rule
        if "learning_rate" in vary:
            low, high = _around(settings.learning_rate, *((1e-5, 5e-4) if rms else (1e-2, 1.0)))
            values["learning_rate"] = trial.suggest_float("learning_rate", low, high, log=True)
        if "decay_rate" in vary and "decay" in settings.rule:
            low, high = _around(settings.decay_rate, LEAST, 0.1)
            low, high = math.log10(low), math.log10(high)
            exponent = trial.suggest_float("decay_exponent", low - 0.5, high)
            values["decay_rate"] = 0.0 if exponent < low else 10**exponent
        if "epsilon" in vary and rms:
            low, high = _around(settings.epsilon, 2e-6, 2e-4)
            values["epsilon"] = trial.suggest_float("epsilon", low, high, log=True)
        if "segment_length" in vary:
            lengths = tuple(sorted({1, 2, 5, 10, 20, 50, settings.segment_length}))
            values["segment_length"] = trial.suggest_categorical("segment_length", lengths)
    if settings.cache_size:
        values["cache_size"] = trial.suggest_categorical("cache_size", (200, 500, 1000, 2000, 4000))
        values["cache_weight"] = trial.suggest_float("cache_weight", 0.01, 0.5, log=True)
        values["cache_scale"] = trial.suggest_float("cache_scale", 0.03, 3.0, log=True)
    return replace(settings, **values)


def _around(value: float, low: float, high: float) -> tuple[float, float]:
    """Return a range with a value in it, unless that is 0."""
    return (min(low, value), max(high, value)) if value else (low, high)


def start(settings: Settings, vary: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters of the first trial: the settings that tuning begins with."""
    parameters: dict[str, Any] = {}
    if settings.rule is not None:
        for name in ("learning_rate", "epsilon", "segment_length"):
            if name in vary and getattr(settings, name):
                parameters[name] = getattr(settings, name)
        if "decay_rate" in vary:
            parameters["decay_exponent"] = math.log10(settings.decay_rate or LEAST / 2)
    if settings.cache_size:
        parameters |= {
            "cache_size": settings.cache_size,
            "cache_weight": settings.cache_weight,
            "cache_scale": settings.cache_scale,
        }
    return parameters


def tune(
    name: str,
    settings: Settings,
    model: Any,
    stats: Stats | None,
    waves: Waves,
    plan: Plan,
    journal: Path | str,
    report: Report | None = None,
    engine: kernels.Name = "auto",
) -> Tuned:
    """Return the best settings of a predictor on a validation text, or on its documents."""
    began = time.perf_counter()
    # a rule that misses its statistics says so before a trial
    runs = settings.predictor(model, stats, engine).engine
    task = _task(settings, model, stats, waves, plan) | {"engine": runs}
    study = _study(name, task, Path(journal))
    prefix = waves.prefix(plan.prefix + 1)
    while (count := len(_trials(study, "COMPLETE", "PRUNED"))) < plan.trials:
        trial, candidate = _ask(study, settings, plan, count)
        best = min((old.value for old in _trials(study, "COMPLETE")), default=None)
        for step, progress in _read(candidate, model, stats, prefix, engine):
            if report:
                report(progress._replace(trial=count, trials=plan.trials, best=best))
            if math.isfinite(progress.nats):
                trial.report(progress.nats, step)
            if trial.should_prune() or not math.isfinite(progress.nats):
                study.tell(trial, state=_state("PRUNED"))
                break
        else:
            study.tell(trial, progress.nats)
    finished = sorted(_trials(study, "COMPLETE"), key=lambda old: old.value)
    if not finished:
        raise ValueError(f"every trial of {name!r} diverged; give lower rates to begin with")
    # in order, not by their numbers in the journal: trials that were stopped have some of these
    every = _trials(study, "COMPLETE", "PRUNED")
    places = {old.number: str(k) for k, old in enumerate(every)}
    confirmed: dict[str, float | None] = dict(study.user_attrs.get("confirmed", {}))
    for k, old in enumerate(finished[: plan.confirm]):
        if places[old.number] in confirmed:
            continue
        candidate = Settings(**old.user_attrs["settings"])
        for _, progress in _read(candidate, model, stats, waves, engine):
            if report:
                place = {"trial": plan.trials + k, "trials": plan.trials + plan.confirm}
                report(progress._replace(**place, best=finished[0].value))
        nats = progress.nats if math.isfinite(progress.nats) else None
        confirmed[places[old.number]] = nats
        study.set_user_attr("confirmed", confirmed)
    whole = {place: nats for place, nats in confirmed.items() if nats is not None}
    if not whole:
        raise ValueError(
            f"the best trials of {name!r} diverged on the whole split; confirm more of them, or "
            "read a longer prefix"
        )
    winner = min(whole, key=whole.__getitem__)
    record = {
        "plan": task["plan"],
        "engine": runs,
        "validation_nats": whole[winner],
        "confirmed": confirmed,
        "trials": [_entry(k, old) for k, old in enumerate(every)],
        "seconds": round(time.perf_counter() - began, 1),
    }
    return Tuned(Settings(**every[int(winner)].user_attrs["settings"]), record)


def _study(name: str, task: Mapping[str, Any], journal: Path) -> Any:
    """Return the trials so far of a row, from the journal."""
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
    except ImportError:
        raise ValueError("tuning needs Optuna: pip install 'dyneval[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal.parent.mkdir(parents=True, exist_ok=True)
    # the lock of a tuning that was killed while it wrote is taken after 3 seconds
    lock = JournalFileSymlinkLock(str(journal), grace_period=3)
    try:
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal), lock)),
            study_name=name,
            load_if_exists=True,
            direction="minimize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{journal} is no whole journal of tunings: {error}") from None
    before = study.user_attrs.get("task", task)
    if before != task:
        other = [key for key, value in task.items() if before.get(key) != value]
        raise ValueError(
            f"{journal} holds a tuning of {name!r} that was begun with another "
            f"{', '.join(other)}; go on with the same, or write to another --out"
        )
    study.set_user_attr("task", task)
    return study


def _task(
    settings: Settings, model: Any, stats: Stats | None, waves: Waves, plan: Plan
) -> dict[str, Any]:
    """Return all that the trials depend on, as JSON values."""
    many = {
        "documents": sha256(waves.bounds.tobytes()).hexdigest(),
        "carry": waves.carry,
        "streams": waves.streams,
    }
    return (many if len(waves.bounds) > 2 else {}) | {
        "settings": settings.to_json(),
        "plan": _budget(plan),
        "model": fingerprint(model),
        "statistics": asdict(stats.collection) if stats else None,
        "text": sha256(waves.tokens.numpy().tobytes()).hexdigest(),
    }


def _budget(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values; the sampler is told where it is not the usual one."""
    values = asdict(plan) | {"vary": list(plan.vary)}
    return {name: value for name, value in values.items() if (name, value) != ("sampler", "tpe")}


def _ask(study: Any, settings: Settings, plan: Plan, count: int) -> tuple[Any, Settings]:
    """Return the next trial and its settings; the first has those that tuning begins with."""
    from optuna.samplers import TPESampler

    # a sampler of its own for each trial: what comes next does not depend on what was stopped
    study.sampler = TPESampler(
        n_startup_trials=max(4, plan.trials // 3),
        multivariate=True,  # η and λ go together: what moves further is to be pulled further
        seed=plan.seed + count,
        constant_liar=False,
    )
    if count == 0 and plan.sampler == "tpe" and not _trials(study, "WAITING"):
        study.enqueue_trial(start(settings, plan.vary))
    trial = study.ask()
    if plan.sampler == "grid":
        learning_rate, decay_rate = GRID[count]
        candidate = replace(settings, learning_rate=learning_rate, decay_rate=decay_rate)
    else:
        candidate = suggest(trial, settings, plan.vary)
    trial.set_user_attr("settings", candidate.to_json())
    return trial, candidate


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _trials(study: Any, *states: str) -> list[Any]:
    """Return the trials in one of some states, in order."""
    trials: list[Any] = study.get_trials(deepcopy=False, states=tuple(map(_state, states)))
    return trials


def _entry(number: int, trial: Any) -> dict[str, Any]:
    """Return a trial as JSON values; the nats of an abandoned one are those of its last check."""
    reported = sorted(trial.intermediate_values.items())
    nats = trial.value if trial.value is not None else reported[-1][1] if reported else None
    settings = trial.user_attrs.get("settings")
    return {"number": number, "state": trial.state.name, "settings": settings, "nats": nats}


def _read(
    settings: Settings,
    model: Any,
    stats: Stats | None,
    waves: Waves,
    engine: kernels.Name,
) -> Iterator[tuple[int, Progress]]:
    """Read a text, yielding its mean nats so far a few times on the way."""
    total, steps, done, nats = int(waves.predicted.sum()), 0, 0, 0.0
    for part in waves.read(settings.predictor(model, stats, engine), settings.segment_length):
        found = part.nats[part.places >= 0]
        done, nats = done + len(found), nats + float(found.sum())
        if done * CHECKS >= (steps + 1) * total or not math.isfinite(nats):
            steps = done * CHECKS // total
            yield steps, Progress(0, 0, done, total, nats / done, None)
            if not math.isfinite(nats):
                return


def tune_rows(
    rows: Mapping[str, Settings],
    checkpoint: Checkpoint,
    stats: Statistics,
    corpus: Corpus,
    split: str,
    plan: Plan,
    path: Path | str,
    report: Callable[[str, Progress], None] | None = None,
    limit: int | None = None,
    engine: kernels.Name = "auto",
    documents: str | None = None,
    carry: Carry = "none",
    streams: int = 1,
) -> dict[str, Tuned]:
    """Tune each row, writing the settings file at `path` after each; rows it had before stay.

    The rule of `dynamic+cache` is the one tuned for `dynamic`, or else for its own name; only its
    cache is tuned.
    """
    path = Path(path)
    storage.check_writable(path, (".json",))
    if limit is not None and limit < 1:
        raise ValueError(f"a limit of {limit} tokens leaves nothing to read")
    check(documents, carry, streams)
    texts = documents_.read(corpus, split, documents, limit)
    begin = checkpoint.vocabulary.begin
    waves = Waves(texts.text.stream[0], texts.bounds, carry, streams, begin)
    if not waves.prefix(plan.prefix + 1).predicted.any():
        raise ValueError(f"{corpus.name} ({split}) is too short to tune on")
    about = {
        "corpus": corpus.name,
        "split": split,
        "tokens": len(texts.text),
        "documents": documents,
        "carry": carry,
        "streams": streams,
        "checksum": corpus.checksum(split),
        "model_hash": fingerprint(checkpoint.model),
        "device": devices.describe(next(checkpoint.model.parameters()).device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    for name, row in rows.items():  # mistakes show before the first trial
        if plan.sampler == "grid" and ("rms" not in (row.rule or "") or row.cache_size):
            raise ValueError(
                f"the authors' grid is of a rule with RMS, and {name} is none of these"
            )
        if not (row.rule and row.cache_size):  # whose rule is not known yet
            row.predictor(checkpoint.model, row.reads(stats), engine)
    tuned: dict[str, Tuned] = {}
    for name, row in rows.items():
        known = settings.read(path) if path.exists() else {}
        vary = plan.vary
        if row.rule is not None and row.cache_size:
            rule = known.get("dynamic", known.get(row.rule, row))
            cache = {key: value for key, value in asdict(row).items() if key.startswith("cache")}
            row, vary = replace(rule, **cache), ()
        tuned[name] = tune(
            name,
            row,
            checkpoint.model,
            row.reads(stats),
            waves,
            replace(plan, vary=vary),
            path.with_suffix(".journal"),
            functools.partial(report, name) if report else None,
            engine,
        )
        old = storage.read_json(path) if path.exists() else {"settings": {}, "tuning": {}}
        old["settings"][name] = tuned[name].settings.to_json()
        old.setdefault("tuning", {})[name] = tuned[name].record | about
        storage.write_json(path, old)
    return tuned
