"""Settings: how one predictor reads, as plain values that a file can hold and tuning can change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dyneval import gradient_stats, kernels, models, neural_cache, rules, storage, targets
from dyneval.gradient_stats import RUNNING, Average, RunningStats, Statistics, Stats
from dyneval.neural_cache import Base, NeuralCache, WarmUp
from dyneval.predictors import Dynamic, Static
from dyneval.targets import ALL
from dyneval.vocabularies import Vocabulary

FILE = "settings.json"  # in a checkpoint's folder, read by default


@dataclass(frozen=True)
class Settings:
    """A rule of Table 1 or none, and a neural cache or none."""

    segment_length: int  # n
    rule: str | None = None  # None: the trained weights stay
    learning_rate: float = 5e-5  # η
    decay_rate: float = 2e-3  # λ
    epsilon: float = 2e-5  # ε
    average: Average = "tensors"
    cache_size: int = 0  # 0: no cache
    cache_weight: float = 0.1
    cache_scale: float = 1.0
    cache_warm_up: WarmUp = "none"
    target: str = ALL  # which weights adapt

    def __post_init__(self) -> None:
        if self.segment_length < 1 or self.segment_length % 1:
            raise ValueError(
                f"a segment of {self.segment_length} tokens cannot be read; give 1 or more"
            )
        if self.average not in ("tensors", "weights"):
            raise ValueError(f"average={self.average!r} is not known; give tensors or weights")
        targets.parse(self.target)
        if self.cache_size:
            neural_cache.check(
                self.cache_size, self.cache_weight, self.cache_scale, self.cache_warm_up
            )
        self._rule()

    def _rule(self) -> rules.Rule | None:
        if self.rule is None:
            return None
        return rules.rule(self.rule, self.learning_rate, self.decay_rate, self.epsilon)

    @property
    def needs_statistics(self) -> bool:
        """Whether the rule reads √MS_g."""
        rule = self._rule()
        return rule is not None and rule.needs_statistics

    def reads(self, stats: Statistics) -> Stats | None:
        """Return the statistics that the rule reads, its target's, or None."""
        return stats.get(self.target) if self.needs_statistics else None

    def adapted(self, model: Any) -> Any:
        """Return the module whose parameters are what adapts."""
        return targets.parse(self.target).of(model)

    def adapted_bytes(self, model: Any) -> int:
        """Return how much memory the weights take that adapt, for each stream."""
        if self.rule is None:
            return 0
        return sum(weight.nbytes for weight in self.adapted(model).parameters())

    def predictor(
        self,
        model: Any,
        stats: Stats | None = None,
        engine: kernels.Name = "auto",
    ) -> Base:
        """Return the predictor that these settings describe."""
        rule = self._rule()
        base: Static | Dynamic
        if rule is None:
            base = Static(model, engine)
        else:
            own = self.adapted(model)
            priors = stats.priors(own, self.average) if stats else None
            base = Dynamic(own, rule, priors, engine)
        if not self.cache_size:
            return base
        return NeuralCache(
            base, self.cache_size, self.cache_weight, self.cache_scale, self.cache_warm_up
        )

    def to_json(self) -> dict[str, Any]:
        """Return the values that matter."""
        values = asdict(self)
        unused = [name for name in values if name.startswith("cache") and not self.cache_size]
        if self.rule is None:
            unused += ["rule", "learning_rate"]
        if self.rule is None or self.target == ALL:
            unused += ["target"]
        if self.rule is None or "decay" not in self.rule:
            unused += ["decay_rate"]
        if not self.needs_statistics:
            unused += ["epsilon", "average"]
        return {name: value for name, value in values.items() if name not in unused}

    def __str__(self) -> str:
        rule = self._rule()
        parts = [] if rule is None else [repr(rule)]
        if rule is not None and self.target != ALL:
            parts.append(self.target)
        if self.cache_size:
            parts.append(
                f"cache of {self.cache_size}, weight {self.cache_weight:g}, "
                f"scale {self.cache_scale:g}"
            )
        return ", ".join([*parts, f"n = {self.segment_length}"])


# what a large model is read with that nobody has tuned, nor collected statistics of
UNTUNED = Settings(64, "sgd", learning_rate=0.01)


def default_length(vocabulary: Vocabulary) -> int:
    """Return the paper's n: 5 for words, 20 for characters and bytes; 64 for other tokens."""
    return {"words": 5, "tokens": 64}.get(vocabulary.kind, 20)


def table_1(segment_length: int) -> dict[str, Settings]:
    """Return a predictor for each row of the paper's Table 1 that a base model can have."""
    n = segment_length
    return {
        "sgd-n1": Settings(1, "sgd", learning_rate=0.1),  # traditional dynamic evaluation
        "sgd": Settings(n, "sgd", learning_rate=0.1),
        "sgd+decay": Settings(n, "sgd+decay", learning_rate=0.1),
        "rms+decay": Settings(n, "rms+decay"),
        "rms+rms-decay": Settings(n, "rms+rms-decay"),
        "cache": Settings(n, cache_size=500),
        "dynamic+cache": Settings(n, "rms+rms-decay", cache_size=500),
    }


def read(path: Path | str) -> dict[str, Settings]:
    """Return the settings of each predictor in a file that `tune` wrote."""
    value = storage.read_json(Path(path))
    try:
        return {name: Settings(**row) for name, row in value["settings"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is no settings file of `dyneval tune`: {error}") from None


def rows_of(model: str, files: list[Path] | None, stats: Path | None = None) -> dict[str, Settings]:
    """Return the rows of the settings files given, or of the one in the model's folder.

    A model of Hugging Face, which no training text came with, is read with a rule that needs no
    statistics, unless there are some.
    """
    own = models.folder_of(model) / FILE
    # by its name alone, a file is also found in the model's folder
    beside = [path if path.exists() else own.parent / path for path in files or ()]
    paths = beside if files else [own] if own.exists() else []
    collected = stats or (own.parent / gradient_stats.FILE).exists()
    if not paths and not collected and models.is_theirs(model):
        return {"dynamic": UNTUNED}
    return {name: row for path in paths for name, row in read(path).items()}


def find_statistics(
    rows: Iterable[Settings], model: Any, folder: Path, given: Path | str | None = None
) -> Statistics:
    """Return the statistics that rows need, by target: those given, or in a checkpoint's folder.

    They must be there then, and the model's.
    """
    needed = {row.target: row for row in rows if row.needs_statistics}
    if str(given) == RUNNING:
        return {target: RunningStats() for target in needed}
    own = gradient_stats.load(given) if given and needed else None
    found = {}
    for target, row in needed.items():
        # what is given for another row of the comparison is not for this one
        other = own is not None and own.collection.target in needed.keys() - {target}
        stats = gradient_stats.find(folder, None, target) if own is None or other else own
        if stats is None:
            raise ValueError(gradient_stats.missing(target))
        stats.priors(row.adapted(model))
        found[target] = stats
    return found


def streams_within(memory: int | None, streams: int, rows: Iterable[Settings], model: Any) -> int:
    """Return how many of so many streams fit into a memory in bytes, at least one.

    Each has adapted weights of its own, and a gradient of them while it learns.
    """
    if memory is None:
        return streams
    if memory < 1:
        raise ValueError(f"a memory of {memory} bytes holds nothing; give 1 or more")
    each = max((2 * row.adapted_bytes(model) for row in rows), default=0)
    return max(1, min(streams, memory // each)) if each else streams


def choose(
    rows: Mapping[str, Settings],
    segment_length: int,
    given: Mapping[str, Any],
    cache: Mapping[str, Any] | None,
) -> dict[str, Settings]:
    """Return the predictors to compare: `static` and what else was asked for.

    `rows` are those of settings files, read as they stand unless something is `given` for the
    rule, or a `cache` is asked for; `dynamic` is then what is given, on top of its row.
    """
    if rows and not given and cache is None:
        return {"static": Settings(segment_length)} | dict(rows)
    defaults = table_1(segment_length)
    row = rows.get("dynamic", defaults["rms+rms-decay"])
    target, rule = given.get("target", row.target), given.get("rule", row.rule)
    if target != row.target:
        tuned = (other for other in rows.values() if other.target == target)
        row = next((other for other in tuned if not other.cache_size), replace(row, target=target))
        rule = given.get("rule", row.rule)
    if rule != row.rule:
        row = replace(rows.get(rule, defaults.get(rule, row)), target=target)
    dynamic = replace(row, **given)
    static = Settings(dynamic.segment_length)
    predictors = {"static": static, "dynamic": dynamic}
    if cache is not None:
        for name, base in (("cache", static), ("dynamic+cache", dynamic)):
            found = rows.get(name, defaults[name])
            held = {key: value for key, value in asdict(found).items() if key.startswith("cache")}
            predictors[name] = replace(base, **held | dict(cache))
            if not predictors[name].cache_size:
                raise ValueError("a cache of size 0 holds nothing; give 1 or more")
    return predictors
