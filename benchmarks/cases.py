"""The models whose speed is measured, and what may run them.

Weights are random: how long a segment takes does not depend on their values.
"""

from dataclasses import dataclass
from typing import Any

import baselines
import torch

from dyneval import Dynamic, Prior, Rms, RmsDecay, Static
from dyneval.models import ARCHITECTURES

RATES = (1e-6, 1e-3, 1e-3)  # η, λ, ε: small, so that random weights stay where they are


@dataclass(frozen=True)
class Case:
    """A model by its settings, in dyneval's form and in torch's, and n."""

    title: str
    symbols: int
    segment_length: int
    architecture: str | None  # None: the Transformer below, which is no model of the package
    settings: dict[str, Any]
    plain: Any  # makes it of torch's own layers
    # the least that a run is to reach: lower bound / fused, with each weight once and with the
    # recurrent ones by token; fused / authors' loop, with default and with tuned malloc; fused /
    # torch's static; generic / authors' loop
    floor: tuple[float | None, ...]
    weighed: bool = False  # whether its memory is measured

    def engines(self, device):
        """Return what is timed, by the names of `build`."""
        own = ["fused", "static fused"] if self.architecture and device == "cpu" else []
        return ["authors", "torch static", "reference", "generic", *own]

    def build(self, engine, device="cpu"):
        """Return what reads segments in one way."""
        torch.manual_seed(1)
        if engine == "authors":
            return baselines.AuthorsLoop(self.plain(self.symbols).to(device), *RATES)
        if engine == "torch static":
            return baselines.TorchStatic(self.plain(self.symbols).to(device))
        if engine == "static fused":
            return Reading(Static(self.model(), "fused"))
        rate, decay, epsilon = RATES
        model = self.model().to(device)
        return Reading(
            Dynamic(model, Rms(rate, epsilon) + RmsDecay(decay), even_priors(model), engine)
        )

    def model(self):
        """Return the model as dyneval takes it, with small random weights."""
        if self.architecture is None:
            return self.plain(self.symbols)
        with torch.device("meta"):  # orthogonal matrices of this size take a while
            model = ARCHITECTURES[self.architecture](self.symbols, **self.settings)
        model = model.to_empty(device="cpu")
        if self.settings.get("tied"):
            model.output.weight = model.embedding.weight
        with torch.no_grad():
            for weight in model.parameters():
                weight.uniform_(-0.05, 0.05)
        return model

    def touched(self):
        """Return how many weights a segment reads, and how many of them anew for each token.

        Of an embedding that is not tied, only the rows that occur are read.
        """
        model = self.model()
        every = sum(weight.numel() for weight in model.parameters())
        recurrent = sum(
            weight.numel()
            for name, weight in model.named_parameters()
            if name.rpartition(".")[2] in ("weight_hh", "weight_mh")
        )
        if self.settings.get("tied"):
            return every, recurrent
        rows, columns = model.embedding.weight.shape
        return every - (rows - min(rows, self.segment_length)) * columns, recurrent


class Reading:
    """A predictor of the package, one segment after another."""

    def __init__(self, predictor):
        self.predictor = predictor

    def segment(self, inputs, targets, lap):
        """Score a segment and learn from it; `lap` is called after each of the two parts."""
        self.predictor.predict(inputs).nats(targets)
        lap()
        self.predictor.learn(targets)
        lap()


def even_priors(model):
    """Return √MS_g that are the same everywhere."""
    return {
        name: Prior(theta.detach(), torch.full_like(theta, 1e-3), 1e-3)
        for name, theta in model.named_parameters()
    }


CASES = {
    "a": Case(
        "PTB LSTM 2×650, untied, 10,000 words",
        10_000,
        5,
        "lstm",
        {"embedding_size": 650, "units": 650, "layers": 2},
        lambda symbols: baselines.LSTM(symbols, 650, [650, 650]),
        (0.55, None, 10, 5.5, 1.4, 4),
    ),
    "b": Case(
        "AWD-LSTM 400/1150/1150/400, tied, 10,000 words",
        10_000,
        5,
        "awd-lstm",
        {"embedding_size": 400, "units": 1150, "layers": 3, "tied": True},
        lambda symbols: baselines.LSTM(symbols, 400, [1150, 1150, 400], tied=True),
        (0.55, None, 9.5, 5.5, 1.4, 4),
    ),
    "c": Case(
        "mLSTM 512/64, 205 bytes",
        205,
        20,
        "mlstm",
        {"embedding_size": 64, "units": 512},
        lambda symbols: baselines.MLSTM(symbols, 64, 512),
        (None, None, 6, None, 0.9, 1.7),
    ),
    "d": Case(
        "mLSTM 2800/400, 205 bytes",
        205,
        20,
        "mlstm",
        {"embedding_size": 400, "units": 2800},
        lambda symbols: baselines.MLSTM(symbols, 400, 2800),
        (None, 0.75, 9, None, 1.5, 5),
        weighed=True,
    ),
    "e": Case(
        "Transformer, 6 layers of 512/2048, context 512, 10,000 words",
        10_000,
        64,
        None,
        {},
        lambda symbols: baselines.Transformer(symbols, 512, 2048, 6, 512),
        (None, None, None, None, None, 1.5),
    ),
}
