"""Deltas: what a model has learned, θ_l − θ_g, in a folder of its own, as an adapter is.

`delta.safetensors` has it by the model's own names: added to its weights, it makes them what they
were in the session. Of a low-rank change it has U and V of each matrix, whose product is added.
`delta.json` says of which model it is, and how it was learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dyneval import storage
from dyneval.predictors import Dynamic
from dyneval.targets import target_of

CONFIG, TENSORS = "delta.json", "delta.safetensors"


def save(
    folder: Path | str,
    own: Any,
    predictor: Dynamic,
    about: dict[str, Any],
    dtype: torch.dtype | None = None,
) -> None:
    """Write what the first stream of a predictor has learned, and what the file is `about`.

    `own` is the module that adapts; `dtype` stores the delta in fewer bits.
    """
    delta = {
        name: theta - predictor.priors[name].theta.to(theta)
        for name, theta in predictor.weights().items()
    }
    named = {
        _short(name): change.to(dtype or change.dtype)
        for name, change in (delta | _fixed(own)).items()
    }
    for name, change in named.items():
        if not change.isfinite().all():
            raise ValueError(f"{name} is not finite in {change.dtype}; it cannot be kept so")
    about = about | {"target": target_of(own)}
    storage.write_tensors(Path(folder) / TENSORS, named, about)
    storage.write_json(Path(folder) / CONFIG, about)


def load(folder: Path | str, own: Any, predictor: Dynamic, about: dict[str, Any]) -> None:
    """Put what `save` wrote in the place of what the first stream has learned so far.

    It is for the same target, and for a model of the same hash and architecture as in `about`.
    """
    folder = Path(folder)
    delta, saved = _read(folder)
    if (target := target_of(own)) != saved["target"]:
        raise ValueError(
            f"{folder} holds what was learned with the target {saved['target']}, not with "
            f"{target}; adapt the model with target={saved['target']!r}"
        )
    if any(saved[name] != about[name] for name in ("model", "architecture")):
        raise ValueError(
            f"{folder} is of a {saved['architecture']} with weights {saved['model'][:12]}…, and "
            f"this is a {about['architecture']} with {about['model'][:12]}…; give the model that "
            "it was saved with"
        )
    fixed = _fixed(own)
    trained = {name: prior.theta for name, prior in predictor.priors.items()}
    shapes = {_short(name): tensor.shape for name, tensor in (trained | fixed).items()}
    if {name: change.shape for name, change in delta.items()} != shapes:
        raise ValueError(f"{folder} has other weights than a delta of {target}; save it again")
    for name, value in fixed.items():
        value.copy_(delta[_short(name)])
    state = predictor.state_dict()
    for name, theta in trained.items():
        path = f"streams.0.weights.{name}"
        state[path] = theta.to(state[path]) + delta[_short(name)].to(state[path])
    predictor.load_state_dict(state)


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a delta and what it is about, if the two files belong together."""
    about = storage.read_json(folder / CONFIG)
    delta, inside = storage.read_tensors(folder / TENSORS)
    if not isinstance(about, dict) or not {"model", "architecture", "target"} <= about.keys():
        raise ValueError(f"{folder}/{CONFIG} describes no delta; save it again")
    if about != inside:
        raise ValueError(f"{CONFIG} and {TENSORS} in {folder} are of two deltas; save it again")
    return delta, about


def _fixed(own: Any) -> dict[str, Tensor]:
    """Return what a change has beside what adapts: V of a low-rank one."""
    buffers = own.named_buffers()
    return {name: value for name, value in buffers if name.startswith("changes.")}


def _short(name: str) -> str:
    """Return the name of a parameter in the model of transformers; that of a change goes on."""
    return name.removeprefix("changes.").removeprefix("model.")
