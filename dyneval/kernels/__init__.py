"""Kernels: engines that compute what `engines.Reference` does, several times faster.

`choose` says which one applies: `segments.Segment` for the project's own models, forward, backward
and update written by hand; `generic.Generic` for any other, with autograd and the same updates.
Both are numba, compiled when first used and kept on disk. `fast_forward` is the same for reading
without learning. Where numba is missing or its cache folder cannot be used, the plain engine runs.
On a GPU `cuda.Triton` serves all models, or `cuda.Foreach` where Triton is missing. What adapts
beside a model's own weights, and other models' streams side by side, are `batched.Batched`'s.

Read `network.py` first, then `lstm.py`; `updates.py` and `products.py` are where the time goes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from dyneval.adapted import Added
from dyneval.batched import Batched, reads
from dyneval.engines import Engine, Reference, Rows, Streams
from dyneval.gradient_stats import Prior, RunningPrior
from dyneval.rules import Rule

Name = Literal["auto", "fused", "generic", "reference"]
NAMES: tuple[Name, ...] = ("auto", "fused", "generic", "reference")


def choose(
    model: Any, rule: Rule, priors: Mapping[str, Prior], engine: Name = "auto"
) -> tuple[Callable[[int], Streams], str]:
    """Return what makes the engines of B streams, and one line that says which they are and why.

    `auto` takes the fastest that applies; `fused` is either of the kernels' engines, and a
    ValueError where neither applies. Streams of the hand-written engine take turns, since each
    moves all its weights as fast as memory allows; others are batched, where the model can be
    read so.
    """
    _known(engine)
    # what only the reference engine can do
    running = any(isinstance(prior, RunningPrior) for prior in priors.values())
    half = any(weight.dtype.itemsize < 4 for weight in model.parameters())
    alone = engine == "reference" or running or half
    if isinstance(model, Added) and not alone and reads(model):
        for name, _ in model.named_parameters():  # missing statistics are asked for at once
            _read_by(rule, priors[name])
        return lambda count: Batched(model, rule, priors, count), "batched: all streams in one"
    make, why = choose_one(model, rule, priors, engine)

    def make_all(count: int) -> Streams:
        if count > 1 and why.startswith("generic") and reads(model):
            return Batched(model, rule, priors, count)
        return Rows(make, count)

    return make_all, why


def choose_one(
    model: Any, rule: Rule, priors: Mapping[str, Prior], engine: Name = "auto"
) -> tuple[Callable[[], Engine], str]:
    """Return what makes an engine for a single stream, and one line that says which and why."""
    _known(engine)
    theta = dict(model.named_parameters())
    if any(isinstance(prior, RunningPrior) for prior in priors.values()):
        why = "its statistics are of the stream's own past"
        if engine not in ("auto", "reference"):
            raise _refusal(engine, why)
        return lambda: Reference(model, rule, priors), f"reference: {why}"
    read = {name: _read_by(rule, priors[name]) for name in theta}
    if engine == "reference":
        return lambda: Reference(model, rule, priors), "reference: asked for"
    on_cuda = _on_cuda(theta)
    problem = _misfit(theta, read) or (None if on_cuda else _unusable(engine)) or _unknown(rule)
    if problem is not None:
        if engine != "auto":
            raise _refusal(engine, problem)
        return lambda: Reference(model, rule, priors), f"reference: {problem}"
    if on_cuda:
        return _choose_on_cuda(model, rule, priors)

    from dyneval.kernels.compiling import announced
    from dyneval.kernels.generic import Generic
    from dyneval.kernels.recurrent import knows
    from dyneval.kernels.segments import Segment

    name = _name(model)
    known = knows(model) and engine != "generic"
    kind: Callable[[Any, Rule, Mapping[str, Prior]], Engine] = Segment if known else Generic

    def make() -> Engine:
        with announced():
            return kind(model, rule, priors)

    if known:
        return make, f"fused: hand-written for {name}"
    return make, f"generic: {_why(engine, name)}; autograd with fused updates"


def fast_forward(model: Any, engine: Name = "auto") -> tuple[Any, str]:
    """Return what reads as a model does, without a graph, and one line that says how and why.

    It goes with the engine of the same name, so that not learning and not moving are the same.
    """
    _known(engine)
    if engine == "reference":
        return model, "reference: asked for"
    theta = dict(model.named_parameters())
    on_cuda = _on_cuda(theta)
    problem = _misfit(theta, {}) or (None if on_cuda else _unusable(engine))
    if problem is not None:
        if engine != "auto":
            raise _refusal(engine, problem)
        return model, f"reference: {problem}"
    if on_cuda:  # whose products are the generic route's
        return model, "generic: on cuda, torch's own products"

    from dyneval.kernels.compiling import announced
    from dyneval.kernels.recurrent import knows
    from dyneval.kernels.static import Captured, Forward

    name = _name(model)
    with announced():
        if knows(model) and engine != "generic":
            return Forward(model), f"fused: hand-written for {name}"
        return Captured(model), f"generic: {_why(engine, name)}"


def _choose_on_cuda(
    model: Any, rule: Rule, priors: Mapping[str, Prior]
) -> tuple[Callable[[], Engine], str]:
    from dyneval.kernels.cuda import Foreach, Triton, without_triton

    problem = without_triton(next(iter(priors.values())).theta.device)
    if problem is None:
        return lambda: Triton(model, rule, priors), "generic: on cuda, autograd with Triton updates"
    why = f"generic: on cuda, autograd with torch's updates; {problem}"
    return lambda: Foreach(model, rule, priors), why


def _known(engine: str) -> None:
    if engine not in NAMES:
        raise ValueError(f"there is no engine {engine!r}; give one of {', '.join(NAMES)}")


def _refusal(engine: str, problem: str) -> ValueError:
    return ValueError(f"the {engine} engine cannot be used: {problem}; give auto")


def _name(model: Any) -> str:
    """Return the name of a model's class; one of Hugging Face tells that of its own."""
    return getattr(model, "architecture", type(model).__name__)


def _why(engine: str, name: str) -> str:
    return "asked for" if engine == "generic" else f"{name} has no kernels of its own"


def _read_by(rule: Rule, prior: Prior) -> list[Tensor]:
    """Return what an update may read of a prior; missing statistics are asked for at once."""
    return [prior.theta] + ([prior.scale] if rule.needs_statistics else [])


def _on_cuda(theta: Mapping[str, Tensor]) -> bool:
    return all(weight.device.type == "cuda" for weight in theta.values())


def _misfit(theta: Mapping[str, Tensor], read: Mapping[str, list[Tensor]]) -> str | None:
    """Say why the kernels cannot take weights and their priors as they are, if they cannot."""
    if not theta:
        return "the model has no weights"
    dtypes = {weight.dtype for weight in theta.values()}
    if not dtypes <= {torch.float32, torch.float64} or len(dtypes) != 1:
        return f"the weights are {', '.join(map(str, dtypes))}, not all float32 or all float64"
    devices = {weight.device for weight in theta.values() if weight.device.type == "cuda"}
    device = next(iter(devices), torch.device("cpu"))
    where = "the CPU" if device.type == "cpu" else f"{device} as other weights"
    for name, weight in theta.items():
        for tensor in (weight, *read.get(name, ())):
            if tensor.device != device:
                return f"{name} is on {tensor.device}, not on {where}"
            if tensor.dtype != weight.dtype or tensor.shape != weight.shape:
                return f"{name} and its prior differ in precision or shape"
            if not tensor.is_contiguous():
                return f"{name} or its prior is not contiguous"
    return None


def _unknown(rule: Rule) -> str | None:
    from dyneval.kernels.rates import rates

    return f"the kernels have no code for {rule}" if rates(rule) is None else None


@cache
def _unusable(engine: Name) -> str | None:
    """Say why the kernels cannot be compiled on this machine, if so; warn once of what it costs."""
    try:
        import numba
        import numpy as np

        from dyneval.kernels.products import project

        if numba.config.DISABLE_JIT:
            raise RuntimeError("numba is switched off by NUMBA_DISABLE_JIT")
        project.compiled(np.float32)
    except Exception as error:  # whatever it is, the plain engine can do without
        reason = f"numba cannot be used ({' '.join(str(error).split())})"
        if engine == "auto":  # or else it is an error
            warnings.warn(
                f"{reason}; the reference engine runs instead, several times slower. A missing "
                "numba can be installed; for its cache, set NUMBA_CACHE_DIR to a folder that can "
                "be written",
                RuntimeWarning,
                stacklevel=3,
            )
        return reason
    return None
