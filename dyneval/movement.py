"""Movement: how far the weights of a predictor went from the trained ones while it read."""

from __future__ import annotations

import math
from typing import Any

import torch

from dyneval.predictors import Dynamic


def moved(predictor: Any, stream: int = 0) -> dict[str, dict[str, Any]]:
    """Return ‖θ_l − θ_g‖ of each weight that a predictor adapts, as JSON values.

    `rms` is that over √(number of weights), `relative` over ‖θ_g‖; None is what is no number, as
    where θ_g = 0 or the weights left all bounds. A predictor that does not adapt has none.
    """
    base = getattr(predictor, "base", predictor)  # of a cache
    if not isinstance(base, Dynamic):
        return {}
    found = {}
    for name, theta in base.weights(stream).items():
        prior = base.priors[name].theta.to(theta.device)
        distance = _norm(theta - prior)
        found[name] = {
            "shape": list(theta.shape),
            "rms": _number(distance, math.sqrt(theta.numel())),
            "relative": _number(distance, _norm(prior)),
        }
    return found


def _norm(weights: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(weights, dtype=torch.float64))


def _number(distance: float, unit: float) -> float | None:
    return distance / unit if unit and math.isfinite(distance) else None
