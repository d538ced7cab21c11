"""What the tests of the kernels share: priors that are far from even, and how engines are compared.

The measure is each tensor's largest change since the trained weights: a tensor that hardly moves
is held to its own small moves.
"""

from __future__ import annotations

import torch
from torch import nn

from dyneval.engines import Engine
from dyneval.gradient_stats import Prior
from dyneval.rules import Decay, Rms, RmsDecay, Sgd

RULES = [
    Sgd(0.3),
    Sgd(0.3) + Decay(0.1),
    Rms(0.02, 0.1) + Decay(0.1),
    Rms(0.02, 0.1) + RmsDecay(1),
    Rms(0.02, 0.1),
    Sgd(0.1) + RmsDecay(0.3),
    Sgd(0.1) + Rms(0.01, 0.1) + Decay(0.05) + RmsDecay(0.5),
]


def priors(model: nn.Module) -> dict[str, Prior]:
    """Return θ_g and a √MS_g between 0 and 1, the same at every call."""
    generator = torch.Generator().manual_seed(4)
    return {
        name: Prior(
            theta.detach(),
            torch.rand(theta.shape, dtype=torch.double, generator=generator).to(theta),
            0.4,
        )
        for name, theta in model.named_parameters()
    }


def follow(engine: Engine, text: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    """Read and learn from consecutive segments of a text; return the nats of each."""
    nats, start = [], 0
    for length in lengths:
        inputs = text[None, start : start + length]
        targets = text[None, start + 1 : start + 1 + length]
        inputs = inputs[:, : targets.shape[1]]
        nats.append(engine.predict(inputs).nats(targets)[0].cpu())
        engine.learn(targets)
        start += length
    return nats


def difference(found: Engine, expected: Engine, start: dict[str, Prior]) -> float:
    """Return how far weights are apart, as a part of each tensor's largest change."""
    theirs = {name: theta.double().cpu() for name, theta in expected.weights().items()}
    ours = {name: theta.double().cpu() for name, theta in found.weights().items()}
    assert ours.keys() == theirs.keys()
    worst = 0.0
    for name, theta in theirs.items():
        change = (theta - start[name].theta.double().cpu()).abs().max().item()
        apart = (ours[name] - theta).abs().max().item()
        worst = max(worst, apart / max(change, 1e-300) if apart else 0.0)
    return worst
