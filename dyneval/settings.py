"""Settings: how one predictor reads, as plain values that a file can hold and tuning can change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dyneval import gradient_stats, kernels, neural_cache, rules, storage
from dyneval.gradient_stats import Average, GradientStats
from dyneval.neural_cache import Base, NeuralCache, WarmUp
from dyneval.predictors import Dynamic, Static
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

    def __post_init__(self) -> None:
        if self.segment_length < 1 or self.segment_length % 1:
            raise ValueError(
                f"a segment of {self.segment_length} tokens cannot be read; give 1 or more"
            )
        if self.average not in ("tensors", "weights"):
            raise ValueError(f"average={self.average!r} is not known; give tensors or weights")
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

    def predictor(
        self, model: Any, stats: GradientStats | None = None, engine: kernels.Name = "auto"
    ) -> Base:
        """Return the predictor that these settings describe."""
        rule = self._rule()
        base: Static | Dynamic
        if rule is None:
            base = Static(model, engine)
        else:
            priors = stats.priors(model, self.average) if stats else None
            base = Dynamic(model, rule, priors, engine)
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
        if self.rule is None or "decay" not in self.rule:
            unused += ["decay_rate"]
        if not self.needs_statistics:
            unused += ["epsilon", "average"]
        return {name: value for name, value in values.items() if name not in unused}

    def __str__(self) -> str:
        rule = self._rule()
        parts = [] if rule is None else [repr(rule)]
        if self.cache_size:
            parts.append(
                f"cache of {self.cache_size}, weight {self.cache_weight:g}, "
                f"scale {self.cache_scale:g}"
            )
        return ", ".join([*parts, f"n = {self.segment_length}"])


def default_length(vocabulary: Vocabulary) -> int:
    """Return the paper's n: 5 for words, 20 for characters and bytes."""
    return 5 if vocabulary.kind == "words" else 20


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


def find_statistics(
    rows: Iterable[Settings], model: Any, folder: Path, given: Path | str | None = None
) -> GradientStats | None:
    """Return the statistics given, or those in a checkpoint's folder, if any row needs them.

    They must be there then, and the model's.
    """
    if not any(row.needs_statistics for row in rows):
        return None
    return gradient_stats.belonging(model, folder, given)


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
    rule = given.get("rule", row.rule)
    if rule != row.rule:
        row = rows.get(rule, defaults.get(rule, row))
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
