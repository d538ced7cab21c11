"""Gradient statistics: how large a weight's gradients were on the training data (eq. 5).

MS_g = mean over the N_b training batches of (∇L_k)², elementwise. A `GradientStats` is that mean,
with how it was collected and a hash of the weights it belongs to; `priors` turns it into what
the rules need, a `Prior` for each weight. `predictors.Collector` gathers it.

Where no text is at hand to collect on, a `RunningPrior` stands for the gradients that a stream has
had itself so far. That departs from the paper, whose statistics are fixed before the text begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from dyneval import storage
from dyneval.models import fingerprint
from dyneval.targets import ALL, target_of

Average = Literal["tensors", "weights"]
FILE = "gradient-stats.safetensors"  # in a checkpoint's folder, read by default
RUNNING = "running"  # given for a file: statistics of the stream's own past
F32 = torch.float32


def missing(target: str = ALL) -> str:
    """Return what a rule says that misses its statistics."""
    flag = "" if target == ALL else f" --target {target}"
    return (
        "this rule divides by √MS_g, and no gradient statistics were given; collect them with "
        f"`dyneval gradient-stats{flag}` and give them with --stats"
    )


@dataclass(frozen=True)
class Prior:
    """What training left behind for one weight tensor."""

    theta: Tensor  # θ_g
    rms: Tensor | None = None  # √MS_g
    mean_rms: float = 1.0  # avg(√MS_g), over all weights of the model

    @property
    def scale(self) -> Tensor:
        """Return √MS_g, or say that it is missing."""
        if self.rms is None:
            raise ValueError(missing())
        return self.rms

    @property
    def rms_norm(self) -> Tensor:
        """Return RMS_norm = √MS_g / avg(√MS_g) (eq. 7)."""
        return self.scale / self.mean_rms


@dataclass(frozen=True)
class RunningPrior(Prior):
    """A prior whose √MS_g is of the stream's own past: `Running`, of which each stream has one."""

    warm_up: int = 20  # segments whose gradients are gathered before the first step


class Running:
    """√MS_g of the gradients of one stream's segments so far; no step depends on its own."""

    def __init__(self, priors: Mapping[str, RunningPrior]) -> None:
        self._given = priors
        self.squares = {
            name: torch.zeros_like(prior.theta, dtype=torch.promote_types(prior.theta.dtype, F32))
            for name, prior in priors.items()
        }
        self.count = 0  # segments

    def add(self, gradients: Mapping[str, Tensor | None]) -> None:
        """Count in the gradients of a segment; None is one of zero."""
        self.count += 1
        for name, squares in self.squares.items():
            if (gradient := gradients[name]) is not None:
                squares.addcmul_(gradient.to(squares), gradient.to(squares))

    def reset(self) -> None:
        """Forget the past."""
        self.count = 0
        for squares in self.squares.values():
            squares.zero_()

    def priors(self) -> dict[str, Prior] | None:
        """Return what a rule reads now, or None until there is enough of a past."""
        if self.count < max(prior.warm_up for prior in self._given.values()):
            return None
        rms = {name: (squares / self.count).sqrt() for name, squares in self.squares.items()}
        mean = torch.stack([each.double().mean() for each in rms.values()]).mean().item()
        return {name: Prior(self._given[name].theta, each, mean) for name, each in rms.items()}


class RunningStats:
    """What stands in the place of `GradientStats` where a stream's own past is to do."""

    def __init__(self, warm_up: int = RunningPrior.warm_up) -> None:
        self.collection = Collection("", 1, 0, 0, RUNNING)
        self._warm_up = warm_up

    def priors(self, model: nn.Module, average: Average = "tensors") -> dict[str, Prior]:
        """Return the prior of each weight of a model."""
        if average != "tensors":
            raise ValueError("statistics of a stream's own past are averaged over tensors only")
        return {
            name: RunningPrior(theta.detach(), warm_up=self._warm_up)
            for name, theta in model.named_parameters()
        }


@dataclass(frozen=True)
class Collection:
    """How statistics were collected: they change with each of these."""

    model: str  # hash of the weights
    batch_size: int  # rows of a batch; larger batches give smaller statistics
    segment_length: int  # n
    batches: int  # N_b
    corpus: str = ""
    checksum: str = ""
    target: str = ALL  # which weights they are of


@dataclass(frozen=True)
class GradientStats:
    """√MS_g of every weight tensor of a model, by name."""

    rms: dict[str, Tensor]
    collection: Collection

    def priors(self, model: nn.Module, average: Average = "tensors") -> dict[str, Prior]:
        """Return the prior of each weight of the model that these statistics belong to.

        avg(√MS_g) in eq. 7 is the mean of the tensors' means, as in the authors' code, whose λ
        are published in that unit, or (`average="weights"`) the mean over all weights.
        """
        if average not in ("tensors", "weights"):
            raise ValueError(f"average={average!r} is not known; give tensors or weights")
        if (target := target_of(model)) != self.collection.target:
            raise ValueError(
                f"these gradient statistics are of the target {self.collection.target}, not of "
                f"{target}; collect its own with `dyneval gradient-stats --target {target}`"
            )
        if fingerprint(model) != self.collection.model:
            raise ValueError(
                "these gradient statistics belong to other weights than the model's; collect its "
                "own with `dyneval gradient-stats`"
            )
        return self.matching(model, average)

    def matching(self, model: nn.Module, average: Average = "tensors") -> dict[str, Prior]:
        """Return the priors without asking whether the weights are those of the collection."""
        for name, theta in model.named_parameters():
            if name not in self.rms or self.rms[name].shape != theta.shape:
                raise ValueError(
                    f"these gradient statistics have none that fit the weight {name}; collect the "
                    "model's own with `dyneval gradient-stats`"
                )
        means = torch.stack([rms.double().mean() for rms in self.rms.values()])
        sizes = torch.tensor([rms.numel() for rms in self.rms.values()], dtype=torch.float64)
        mean = means.mean() if average == "tensors" else (means * sizes).sum() / sizes.sum()
        return {
            # statistics keep their digits where weights have fewer
            name: Prior(
                theta.detach(),
                self.rms[name].to(theta.device, torch.promote_types(theta.dtype, torch.float32)),
                mean.item(),
            )
            for name, theta in model.named_parameters()
        }

    def save(self, path: Path | str, dtype: torch.dtype | None = None) -> None:
        """Write the statistics; `dtype` stores them in fewer bits."""
        rms = {name: value.to(dtype or value.dtype) for name, value in self.rms.items()}
        storage.write_tensors(Path(path), rms, {"gradient_stats": asdict(self.collection)})


def load(path: Path | str) -> GradientStats:
    """Return the statistics that `save` wrote, in float32."""
    tensors, about = storage.read_tensors(Path(path))
    try:
        collection = Collection(**about["gradient_stats"])
    except (KeyError, TypeError):
        raise ValueError(
            f"{path} holds no gradient statistics; make them with `dyneval gradient-stats`"
        ) from None
    return GradientStats({name: value.float() for name, value in tensors.items()}, collection)


def file_of(target: str) -> str:
    """Return the name of a target's statistics in a checkpoint's folder.

    >>> file_of("hidden-matrix:256,layer=0")
    'gradient-stats.hidden-matrix-256-layer-0.safetensors'
    """
    if target == ALL:
        return FILE
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", target.replace("*", "all")).strip("-")
    return FILE.replace(".", f".{plain}.", 1)


def find(folder: Path, given: Path | str | None = None, target: str = ALL) -> GradientStats | None:
    """Return the statistics given, or a target's in a checkpoint's folder, or None."""
    path = Path(given) if given else folder / file_of(target)
    return load(path) if given or path.exists() else None


def merge(parts: Sequence[GradientStats]) -> GradientStats:
    """Return the statistics over the batches of all parts, each collected on the same weights."""
    first = parts[0].collection
    for part in parts:
        for name in ("model", "batch_size", "segment_length", "corpus", "checksum", "target"):
            ours, theirs = getattr(first, name), getattr(part.collection, name)
            if ours != theirs:
                raise ValueError(
                    f"statistics of {name} {ours} and {theirs} cannot be merged; collect the "
                    "parts alike"
                )
    batches = sum(part.collection.batches for part in parts)
    rms = {
        name: torch.sqrt(
            sum(part.rms[name].double() ** 2 * part.collection.batches for part in parts)
            / torch.tensor(batches)
        ).to(parts[0].rms[name].dtype)
        for name in parts[0].rms
    }
    return GradientStats(rms, Collection(**asdict(first) | {"batches": batches}))


Stats = GradientStats | RunningStats
Statistics = Mapping[str, Stats]  # by target


def without_statistics(model: nn.Module) -> dict[str, Prior]:
    """Return priors that know θ_g only: enough for rules that do not divide by √MS_g."""
    return {name: Prior(theta.detach()) for name, theta in model.named_parameters()}
