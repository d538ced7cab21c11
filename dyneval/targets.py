"""Targets: which weights adapt while a text is read. All others stay as training left them.

A target makes a module of a model: the parameters of that module are what adapts, and what does
not is shared, never copied. `AllWeights` is the model itself; `Matching`, `NormsAndBiases`,
`LastLayers` and `NoEmbedding` are some of its parameters. `HiddenMatrix` is the paper's sparse
dynamic evaluation, `LowRank` a small change of each matrix: these two add to the model something
that is zero at first (`adapted.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Protocol

from torch import nn

from dyneval import adapted


class Target(Protocol):
    """Which weights adapt; `str` names it on the command line, in files and results."""

    def of(self, model: Any) -> Any:
        """Return a module that reads as the model does, and whose parameters are what adapts."""
        ...


@dataclass(frozen=True)
class AllWeights:
    """All parameters, a tied one once."""

    def of(self, model: Any) -> Any:
        """Return the model itself."""
        return model

    def __str__(self) -> str:
        return "all-weights"


@dataclass(frozen=True)
class Matching:
    """The parameters whose names match a pattern, as `*.bias`."""

    pattern: str

    def of(self, model: Any) -> Any:
        """Return the model with its other parameters held fast."""
        return adapted.some(model, lambda name, _: fnmatchcase(name, self.pattern), str(self))

    def __str__(self) -> str:
        return _spelled("matching", self)


@dataclass(frozen=True)
class NormsAndBiases:
    """All parameters that are no matrices: the scales of normalisations, and biases."""

    def of(self, model: Any) -> Any:
        """Return the model with its matrices held fast."""
        return adapted.some(model, lambda _, weight: weight.dim() < 2, str(self))

    def __str__(self) -> str:
        return "norms-and-biases"


@dataclass(frozen=True)
class LastLayers:
    """The parameters of the last layers: those with the largest numbers in their names."""

    count: int

    def __post_init__(self) -> None:
        _check(self, count=1)

    def of(self, model: Any) -> Any:
        """Return the model with all but its last layers held fast."""
        numbers = {name: _layer(name) for name, _ in model.named_parameters()}
        first = max(numbers.values()) + 1 - self.count
        if max(numbers.values()) < 0 or first < 0:
            raise ValueError(
                f"{self} are more than the {max(numbers.values()) + 1} layers that a "
                f"{type(model).__name__} has; give fewer"
            )
        return adapted.some(model, lambda name, _: numbers[name] >= first, str(self))

    def __str__(self) -> str:
        return _spelled("last-layers", self)


@dataclass(frozen=True)
class NoEmbedding:
    """All parameters but the tables of embeddings, of which a tied softmax is one."""

    def of(self, model: Any) -> Any:
        """Return the model with its embeddings held fast."""
        tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        kept = {id(table.weight) for table in tables}
        return adapted.some(model, lambda _, weight: id(weight) not in kept, str(self))

    def __str__(self) -> str:
        return "no-embedding"


@dataclass(frozen=True)
class HiddenMatrix:
    """Sparse dynamic evaluation: M, zero at first, on H hidden units of a layer: h' = h + M h.

    h' takes the place of h in the recurrence and in what feeds forward.
    """

    units: int  # H
    layer: int | None = None  # None: the last
    first: int = 0  # of the H units

    def __post_init__(self) -> None:
        _check(self, units=1, layer=0, first=0)

    def of(self, model: Any) -> Any:
        """Return the model with the matrix in its recurrence; it must take `mix`."""
        return adapted.Mixed(model, str(self), self.units, self.layer, self.first)

    def __str__(self) -> str:
        return _spelled("hidden-matrix", self)


@dataclass(frozen=True)
class LowRank:
    """A change U V of every matrix: V is fixed and random, U is zero at first and adapts.

    V has entries of variance 1 / rank, so that a step on U is in the mean a step on the matrix.
    Were both to adapt, one would begin with statistics of zero, and its gain at η/ε. Matrices
    that torch multiplies by where nobody sees it, those of its own LSTM, stay as they are.
    """

    rank: int
    pattern: str = "*"  # of the matrices' names
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self, rank=1, seed=0)

    def of(self, model: Any) -> Any:
        """Return the model with U V added to its matrices wherever it uses them."""
        return adapted.Changed(model, str(self), self.rank, self.pattern, self.seed)

    def __str__(self) -> str:
        return _spelled("low-rank", self)


_KINDS: dict[str, type[Any]] = {
    "all-weights": AllWeights,
    "hidden-matrix": HiddenMatrix,
    "last-layers": LastLayers,
    "low-rank": LowRank,
    "matching": Matching,
    "no-embedding": NoEmbedding,
    "norms-and-biases": NormsAndBiases,
}
ALL = str(AllWeights())
_FORMS = (
    "all-weights, no-embedding, norms-and-biases, last-layers:COUNT, low-rank:RANK[,pattern=…], "
    "hidden-matrix:UNITS[,layer=K][,first=K] or matching:PATTERN"
)


def parse(text: str) -> Target:
    """Return the target that `str` named.

    >>> parse("hidden-matrix:256,layer=0")
    HiddenMatrix(units=256, layer=0, first=0)
    """
    name, _, rest = text.partition(":")
    kind = _KINDS.get(name)
    values = rest.split(",") if rest else []
    if kind is None or bool(values) != bool(fields(kind)):
        raise ValueError(f"there is no target {text!r}; give {_FORMS}")
    types = {field.name: field.type for field in fields(kind)}
    given = dict(zip(types, values[:1], strict=False))
    for value in values[1:]:
        key, _, given[key] = value.partition("=")
    try:
        target: Target = kind(**{k: v if types[k] == "str" else int(v) for k, v in given.items()})
    except KeyError:
        raise ValueError(f"{text!r} is no target as it stands; give {_FORMS}") from None
    except ValueError as error:
        raise ValueError(f"{text!r} is no target as it stands ({error}); give {_FORMS}") from None
    return target


def name_of(target: str) -> str:
    """Return what a predictor that adapts a target is called.

    >>> name_of("all-weights"), name_of("hidden-matrix:256"), name_of("low-rank:4")
    ('dynamic', 'sparse', 'low-rank')
    """
    kind = target.partition(":")[0]
    return {ALL: "dynamic", "hidden-matrix": "sparse"}.get(kind, kind)


def target_of(module: Any) -> str:
    """Return which target a module was made for; any other module is read with all its weights."""
    origin = getattr(module, "origin", None)
    return ALL if origin is None else str(origin.target)


def _layer(name: str) -> int:
    """Return the number of the layer that a parameter is in by its name, or -1."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), -1)


def _spelled(name: str, target: Any) -> str:
    """Return how a target is given: its first field, and others that are not as usual."""
    first, *others = fields(target)
    parts = [str(getattr(target, first.name))]
    for field in others:
        value = getattr(target, field.name)
        parts += [f"{field.name}={value}"] * (value != field.default)
    return f"{name}:{','.join(parts)}"


def _check(target: Any, **least: int) -> None:
    for name, minimum in least.items():
        value = getattr(target, name)
        if value is not None and value < minimum:
            raise ValueError(f"{name} {value} of a target: give {minimum} or more")
