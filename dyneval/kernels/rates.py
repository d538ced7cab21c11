"""Rates: a rule of the known terms as the five scalars that an update computes with.

gain = plain + scaled / (√MS_g + ε),  pull = decay + min(norm · √MS_g, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from dyneval.gradient_stats import Prior
from dyneval.rules import Decay, Rms, RmsDecay, Rule, Sgd

PRIOR, RMS = 1, 2  # what an update has to read beside the weight, for `reads`


@dataclass(frozen=True)
class Rates:
    """The scalars of a rule; `rate` is λ, to be divided by a prior's avg(√MS_g)."""

    plain: float = 0.0
    scaled: float = 0.0
    epsilon: float = 1.0
    decay: float = 0.0
    rate: float = 0.0

    @property
    def reads(self) -> int:
        """Return what an update has to read beside the weight."""
        return PRIOR * bool(self.decay or self.rate) + RMS * bool(self.scaled or self.rate)

    def tensors(self, prior: Prior) -> list[Tensor]:
        """Return what an update reads of a prior."""
        towards = [prior.theta] if self.reads & PRIOR else []
        return towards + ([prior.scale] if self.reads & RMS else [])


def rates(rule: Rule) -> Rates | None:
    """Return the scalars of a rule, or None if it takes more than five of them."""
    plain = decay = 0.0
    scaled: list[Rms] = []
    rate: list[RmsDecay] = []
    for term in rule.terms:
        # exactly these types: a term of one's own may inherit from them
        if type(term) is Sgd:
            plain += term.learning_rate
        elif type(term) is Decay:
            decay += term.rate
        elif type(term) is Rms:
            scaled.append(term)
        elif type(term) is RmsDecay:
            rate.append(term)
        else:
            return None
    # each pull of its own is at most 1, each ε is added on its own
    if len({term.epsilon for term in scaled}) > 1 or len(rate) > 1:
        return None
    return Rates(
        plain,
        sum(term.learning_rate for term in scaled),
        scaled[0].epsilon if scaled else 1.0,
        decay,
        sum(term.rate for term in rate),
    )


def describe(record: NDArray[Any], theta: Tensor, prior: Prior | None, rates: Rates) -> None:
    """Write a weight to its record (`plans.weight`); without a prior it is only read."""
    record["theta"] = theta.data_ptr()
    rows = theta.shape[0] if theta.dim() > 1 else 1
    record["rows"], record["columns"] = rows, theta.numel() // max(rows, 1)
    record["one"] = 1
    if prior is None:
        return
    record["reads"] = rates.reads
    if rates.reads & PRIOR:
        record["prior"] = prior.theta.data_ptr()
    if rates.reads & RMS:
        record["rms"] = prior.scale.data_ptr()
    record["plain"], record["scaled"] = rates.plain, rates.scaled
    record["epsilon"], record["decay"] = rates.epsilon, rates.decay
    record["norm"] = rates.rate / prior.mean_rms
