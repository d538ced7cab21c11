"""Update rules: how a weight moves once a segment has been scored.

Δ = −gain ⊙ g + pull ⊙ (θ_g − θ). A rule is a sum of terms, and a term gives its gain and its pull
from what training left behind (`Prior`). `Rms(5e-5) + RmsDecay(2e-3)` is the paper's final rule,
and its `repr` is its log entry. Faster paths are tested against this file; read and change it
first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from dyneval.gradient_stats import Prior

Amount = Tensor | float  # one number for a whole tensor, or one for each weight


class Rule:
    """A sum of terms."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return what is summed."""
        raise NotImplementedError

    def __add__(self, other: Rule) -> Rule:
        return Sum((*self.terms, *other.terms))

    def gain(self, prior: Prior) -> Amount:
        """Return how far each weight moves against a unit of gradient."""
        return sum(term.gain(prior) for term in self.terms)

    def pull(self, prior: Prior) -> Amount:
        """Return which part of the way back to θ_g each weight goes."""
        return sum(term.pull(prior) for term in self.terms)

    @property
    def needs_statistics(self) -> bool:
        """Whether a term reads √MS_g."""
        return any(isinstance(term, Rms | RmsDecay) for term in self.terms)

    def step(self, theta: Tensor, gradient: Tensor, prior: Prior) -> Tensor:
        """Return θ − gain ⊙ g + pull ⊙ (θ_g − θ)."""
        return theta - self.gain(prior) * gradient + self.pull(prior) * (prior.theta - theta)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the terms as JSON values."""
        return [{"term": type(term).__name__} | asdict(term) for term in self.terms]


@dataclass(frozen=True, repr=False)
class Sum(Rule):
    """Several terms."""

    parts: tuple[Term, ...]

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return what is summed."""
        return self.parts

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


@dataclass(frozen=True)
class Term(Rule):
    """One term of a rule: a gain, a pull, or both. A term of your own overrides one of them."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} {value} of {type(self).__name__}: give 0 or more")

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return this term alone."""
        return (self,)

    def gain(self, prior: Prior) -> Amount:
        """Return how far each weight moves against a unit of gradient."""
        return 0.0

    def pull(self, prior: Prior) -> Amount:
        """Return which part of the way back to θ_g each weight goes."""
        return 0.0


@dataclass(frozen=True)
class Sgd(Term):
    """Descend the gradient.

    gain = η
    """

    learning_rate: float  # η

    def gain(self, prior: Prior) -> Amount:
        """Return η."""
        return self.learning_rate


@dataclass(frozen=True)
class Rms(Term):
    """Descend the gradient, scaled by its RMS on the training data (eq. 6).

    gain = η / (√MS_g + ε)

    Unlike RMSprop, MS_g is fixed before the test stream starts.
    """

    learning_rate: float  # η
    epsilon: float = 2e-5  # ε

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon == 0:
            raise ValueError("epsilon 0 divides by zero where √MS_g is 0; give a small number")

    def gain(self, prior: Prior) -> Amount:
        """Return η / (√MS_g + ε)."""
        return self.learning_rate / (prior.scale + self.epsilon)


@dataclass(frozen=True)
class Decay(Term):
    """Go back towards the trained weights, all at one rate (eq. 4).

    pull = λ
    """

    rate: float  # λ

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate > 1:
            raise ValueError(f"a decay of {self.rate} overshoots the trained weights; give 0 to 1")

    def pull(self, prior: Prior) -> Amount:
        """Return λ."""
        return self.rate


@dataclass(frozen=True)
class RmsDecay(Term):
    """Go back towards the trained weights, faster where gradients were large (eq. 8).

    pull = λ · min(RMS_norm, 1/λ)

    Written as min(λ · RMS_norm, 1), so that λ = 0 needs no case of its own.
    """

    rate: float  # λ

    def pull(self, prior: Prior) -> Amount:
        """Return λ · RMS_norm, at most 1."""
        return (self.rate * prior.rms_norm).clamp(max=1.0)


TERMS: dict[str, type[Term]] = {term.__name__: term for term in (Sgd, Rms, Decay, RmsDecay)}
NAMES = ("sgd", "sgd+decay", "rms+decay", "rms+rms-decay")


def rule(name: str, learning_rate: float, decay_rate: float = 0.0, epsilon: float = 2e-5) -> Rule:
    """Return a rule of Table 1 by its name on the command line.

    >>> rule("rms+rms-decay", 5e-5, 2e-3)
    Rms(learning_rate=5e-05, epsilon=2e-05) + RmsDecay(rate=0.002)
    """
    if name not in NAMES:
        raise ValueError(f"there is no rule {name!r}; give one of {', '.join(NAMES)}")
    descend, _, back = name.partition("+")
    gain: Rule = Sgd(learning_rate) if descend == "sgd" else Rms(learning_rate, epsilon)
    if not back:
        return gain
    return gain + (Decay(decay_rate) if back == "decay" else RmsDecay(decay_rate))


def from_json(terms: Iterable[dict[str, Any]]) -> Rule:
    """Return the rule that `to_json` described."""
    parts = []
    for term in terms:
        values = dict(term)
        name = values.pop("term", None)
        if name not in TERMS:
            raise ValueError(f"there is no term {name!r}; give one of {', '.join(TERMS)}")
        try:
            parts.append(TERMS[name](**values))
        except TypeError as error:
            raise ValueError(f"{name} cannot be made of {values}: {error}") from None
    return Sum(tuple(parts)) if len(parts) != 1 else parts[0]


def from_first_release(
    learning_rate: float, decay_rate: float, epsilon: float, *, batches: int, tensors: int
) -> Rule:
    """Return the final rule from settings in the units of the authors' first release.

    Its statistics were √Σ(∇L_k)², not divided by N_b, and its average was divided by one rather
    than by the number of tensors: η and ε are divided by √N_b here, λ by the number of tensors.

    >>> from_first_release(0.002, 0.02, 0.001, batches=1859, tensors=14)  # AWD-LSTM on PTB
    Rms(learning_rate=4.63...e-05, epsilon=2.31...e-05) + RmsDecay(rate=0.00142...)
    """
    root = math.sqrt(batches)
    return Rms(learning_rate / root, epsilon / root) + RmsDecay(decay_rate / tensors)
