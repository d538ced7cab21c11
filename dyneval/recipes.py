"""Recipes: all that the numbers of a training depend on, besides the text.

The presets of the paper's base models are complete and were not run here: they need a GPU. Those
of desk scale reach a usable model on two CPU cores within 90 minutes each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dyneval import models

OPTIMIZERS = ("sgd", "adam", "nt-asgd")
PRECISIONS = ("float32", "bfloat16")
SHORTEST = 5  # tokens of a step of random length
HALVED = 0.05  # how many of these steps are about half as long
SPREAD = 5.0  # standard deviation of their lengths


@dataclass(frozen=True)
class Recipe:
    """A base model and how it is trained."""

    architecture: str
    model: dict[str, Any]  # settings of the architecture
    optimizer: Literal[
        "sgd", "adam", "nt-asgd"
    ]  # sgd descends a step's summed loss, others its mean
    learning_rate: float
    epochs: int
    batch_size: int = 20
    sequence_length: int = 35
    random_lengths: bool = False  # about the sequence length, the learning rate in proportion
    clip: float = 5.0  # the gradient's largest norm
    decay: float = 1.0  # sgd: the learning rate is divided by this each epoch
    constant_epochs: int = 0  # sgd: after so many epochs
    final_learning_rate: float = 0.0  # adam: where the learning rate falls to, linearly
    weight_decay: float = 0.0
    activation: float = 0.0  # AR: this times the mean square of what the softmax sees
    temporal_activation: float = 0.0  # TAR: and of the last layer's change from token to token
    nonmonotone: int = 5  # nt-asgd: average once so many validations brought no better loss
    fine_tune_epochs: int = 0  # nt-asgd: begin again at the best weights, averaging at once
    weight_normalisation: bool = False  # of the layers' matrices, folded into them at the end
    precision: Literal["float32", "bfloat16"] = "float32"  # of the products, under autocast
    seed: int = 1

    def __post_init__(self) -> None:
        if self.architecture not in models.ARCHITECTURES:
            known = ", ".join(models.ARCHITECTURES)
            raise ValueError(f"there is no model {self.architecture!r}; give one of {known}")
        if self.optimizer not in OPTIMIZERS or self.precision not in PRECISIONS:
            raise ValueError(
                f"optimizer {self.optimizer!r} and precision {self.precision!r} of a training: "
                f"give one of {', '.join(OPTIMIZERS)}, and {' or '.join(PRECISIONS)}"
            )
        for name in ("learning_rate", "epochs", "batch_size", "sequence_length", "clip", "decay"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)} of a training: give more than 0")
        for name in ("weight_decay", "activation", "temporal_activation"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} {getattr(self, name)} of a training: give 0 or more")
        if self.nonmonotone < 1 or self.fine_tune_epochs < 0:
            raise ValueError(
                f"nonmonotone {self.nonmonotone} and {self.fine_tune_epochs} epochs of fine-tuning "
                "cannot be: give 1 or more, and 0 or more"
            )
        if self.fine_tune_epochs and (self.optimizer != "nt-asgd" or self.weight_normalisation):
            raise ValueError("fine-tuning averages plain weights: give optimizer nt-asgd for it")
        if (self.activation or self.temporal_activation) and self.architecture != "awd-lstm":
            raise ValueError(f"a model {self.architecture!r} has no AR and TAR; give awd-lstm")

    def lengths(self, tokens: int, epoch: int) -> list[int]:
        """Return the tokens of each step of an epoch that reads so many tokens of each stream.

        Random lengths are those of the seed and the epoch alone.
        """
        length = self.sequence_length
        if not self.random_lengths:
            whole, rest = divmod(tokens, length)
            return [length] * whole + [rest] * (rest > 0)
        random = np.random.default_rng([self.seed, epoch])
        most = -(-tokens // SHORTEST)
        base = np.where(random.random(most) < HALVED, length / 2, length)
        drawn = np.maximum(SHORTEST, random.normal(base, SPREAD).astype(int))
        ends = np.minimum(np.cumsum(drawn), tokens)
        ends = ends[: int(np.searchsorted(ends, tokens)) + 1]
        return [int(step) for step in np.diff(ends, prepend=0)]


# what the recipes of one architecture have in common
_ZAREMBA = {"embedding_size": 650, "units": 650, "layers": 2, "dropout": 0.5}
_LSTM = Recipe("lstm", _ZAREMBA, "sgd", learning_rate=1.0, epochs=39)
_AWD_LSTM = Recipe(
    "awd-lstm",
    {},  # the defaults of the model are those of Penn Treebank
    "nt-asgd",
    learning_rate=30.0,
    epochs=500,
    sequence_length=70,
    random_lengths=True,
    clip=0.25,
    weight_decay=1.2e-6,
    activation=2.0,
    temporal_activation=1.0,
    fine_tune_epochs=500,
)
_MLSTM = Recipe(
    "mlstm",
    {"embedding_size": 400, "units": 2800, "hidden_dropout": 0.2, "embedding_dropout": 0.5},
    "adam",
    learning_rate=1e-3,
    final_learning_rate=7e-5,
    epochs=40,
    batch_size=100,
    sequence_length=200,
    clip=1.0,
    weight_normalisation=True,
)
_SMALL_MLSTM = replace(
    _MLSTM,
    model={"embedding_size": 64, "units": 512},
    learning_rate=2e-3,
    batch_size=32,
    sequence_length=100,
    precision="bfloat16",
)

# the base models of the paper, by corpus: complete, and not run
PAPER = {
    "ptb-lstm": _LSTM,
    "ptb-awd-lstm": _AWD_LSTM,
    "wikitext2-lstm": _LSTM,
    "wikitext2-awd-lstm": replace(
        _AWD_LSTM,
        model={"input_dropout": 0.65, "layer_dropout": 0.2},
        epochs=750,
        batch_size=80,
        fine_tune_epochs=750,
    ),
    "hutter-mlstm": _MLSTM,
    "text8-mlstm": _MLSTM,
}
DESK = {
    # Zaremba et al. (2014), "small", with a little dropout and a slower decay
    "lstm-desk": replace(
        _LSTM,
        model={"embedding_size": 200, "units": 200, "layers": 2, "dropout": 0.2},
        epochs=11,
        decay=1.6,
        constant_epochs=4,
        precision="bfloat16",
    ),
    "lstm-wikitext2-desk": replace(
        _LSTM,
        model={"embedding_size": 300, "units": 300, "layers": 2, "tied": True, "dropout": 0.3},
        epochs=8,
        decay=1.8,
        constant_epochs=3,
        precision="bfloat16",
    ),
    # smaller, with as much less dropout, and averaged early
    "awd-lstm-desk": replace(
        _AWD_LSTM,
        model={
            "embedding_size": 200,
            "units": 600,
            "row_dropout": 0.05,
            "input_dropout": 0.25,
            "layer_dropout": 0.15,
            "output_dropout": 0.25,
            "recurrent_dropout": 0.3,
        },
        epochs=16,
        nonmonotone=2,
        fine_tune_epochs=5,
        precision="bfloat16",
    ),
    "mlstm-desk": replace(_SMALL_MLSTM, epochs=4),
    "mlstm-text8-desk": replace(_SMALL_MLSTM, epochs=3),
}
PRESETS = DESK | PAPER


def find(name: str) -> Recipe:
    """Return the recipe of a preset."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; give one of {', '.join(PRESETS)}")
    return PRESETS[name]


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """Return a recipe with some fields replaced; those of no field of its own are the model's."""
    given = {name: value for name, value in changes.items() if value is not None}
    own = {name: value for name, value in given.items() if name in recipe.__dataclass_fields__}
    rest = {name: value for name, value in given.items() if name not in own}
    return replace(recipe, **own, model=recipe.model | rest)
