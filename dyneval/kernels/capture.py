"""Capture: the linear maps and embeddings that a model applies its parameters in, as they happen.

Within `Capture`, a product of inputs X with a parameter, and a look-up in one, are carried out
here, by a `Product` that suits the device, and without a gradient of the parameter. What that would
be made of is kept instead, the inputs X and the gradients D of the outputs. What is not seen
(`matrices.py`) gets its gradient from autograd as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dyneval.matrices import Watch


@dataclass(eq=False)
class Weight:
    """A parameter, and how it was used since the last step."""

    name: str
    parameter: nn.Parameter
    maps: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # X (n, C), D (n, R)
    lookups: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # tokens (n,), D (n, C)
    passes: int = 0  # each goes through the rows the other way, to what the cache still holds

    def forget(self) -> None:
        """Begin another step."""
        self.maps.clear()
        self.lookups.clear()
        self.passes = 0


Product = Callable[[Tensor, Weight, bool, Tensor | None], Tensor]  # as `multiply`


def multiply(x: Tensor, weight: Weight, turned: bool, addend: Tensor | None) -> Tensor:
    """(n, C) X -> (n, R) X Wᵀ + addend; or turned, (n, R) X -> (n, C) X W + addend: torch's own."""
    factor = weight.parameter.detach()
    factor = factor if turned else factor.t()
    return x @ factor if addend is None else torch.addmm(addend, x, factor)


class _Map(torch.autograd.Function):
    """X Wᵀ, or X W where W was transposed; its backward keeps X and D, if W is to learn by it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        addend: Tensor | None,
        anchor: Tensor | None,
        use: tuple[Product, Weight, bool],
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.use, ctx.learns = use, anchor is not None
        ctx.added = None if addend is None else addend.shape
        return _applied(*use, x, addend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (product, weight, turned) = ctx.saved_tensors, ctx.use
        if ctx.learns and x.numel():  # no inputs, no gradient
            flat = x.detach().reshape(-1, x.shape[-1])
            d = gradient.reshape(-1, gradient.shape[-1])
            weight.maps.append((d, flat) if turned else (flat, d))
        error = added = None
        if ctx.needs_input_grad[0]:
            error = _applied(product, weight, not turned, gradient)
        if ctx.needs_input_grad[1]:
            same = gradient.shape == ctx.added
            added = gradient if same else gradient.sum_to_size(ctx.added)
        return error, added, None, None


def _applied(
    product: Product, weight: Weight, turned: bool, x: Tensor, addend: Tensor | None = None
) -> Tensor:
    """(…, C) -> (…, R), X Wᵀ; or turned, (…, R) -> (…, C), X W; and what is added to it."""
    flat = x.reshape(-1, x.shape[-1])
    y = product(flat, weight, turned, addend)
    # in place, since autograd forbids to write over a view made here
    return y if x.dim() == 2 else y.resize_(*x.shape[:-1], y.shape[-1])


class _LookUp(torch.autograd.Function):
    """Rows of a table; its backward keeps the tokens and D."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, anchor: Tensor, weight: Weight) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight = weight
        return F.embedding(tokens, weight.parameter.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        (tokens,) = ctx.saved_tensors
        if tokens.numel():
            d = gradient.reshape(-1, gradient.shape[-1])
            ctx.weight.lookups.append((tokens.reshape(-1), d))
        return None, None, None


class _OwnGradients(Exception):
    """A model takes gradients itself, of which captured uses would take part."""


class Capture(Watch[Weight]):
    """A context in which the uses of weights are kept, and without gradients carried out only.

    Differentiate with respect to `anchor` too: it is what leads to the captured uses.
    """

    def __init__(self, weights: Iterable[Weight], product: Product) -> None:
        matrices = [weight for weight in weights if weight.parameter.dim() == 2]
        super().__init__({weight: weight.parameter for weight in matrices})
        self._product = product
        device = matrices[0].parameter.device if matrices else None
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self._suits = True  # the model, as far as it was run

    def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return what a function gives, captured; a model that takes gradients itself is not."""
        if self._suits:
            try:
                with self:
                    return function(*arguments, **named)
            except _OwnGradients:
                self._suits = False
        return function(*arguments, **named)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _GRADIENTS:
            raise _OwnGradients
        if _transformed():
            return function(*args, **(kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs)

    def product(
        self, key: Weight, x: Tensor, matrix: Tensor, turned: bool, addend: Tensor | None
    ) -> Tensor | None:
        """Return the product, and keep what its gradient is made of."""
        if not torch.is_grad_enabled():
            return _applied(self._product, key, turned, x, addend)
        if matrix.requires_grad and not _is_linked(key, matrix):
            return None
        apply: Any = _Map.apply
        anchor = self.anchor if matrix.requires_grad else None
        result: Tensor = apply(x, addend, anchor, (self._product, key, turned))
        return result

    def look_up(self, key: Weight, tokens: Tensor, matrix: Tensor) -> Tensor | None:
        """Return the rows, and keep what their gradient is made of."""
        if not (torch.is_grad_enabled() and matrix.requires_grad and _is_linked(key, matrix)):
            return None
        apply: Any = _LookUp.apply
        result: Tensor = apply(tokens.long(), self.anchor, key)
        return result


def _is_linked(weight: Weight, tensor: Tensor) -> bool:
    """Return whether a gradient by this tensor is one by the weight, as it is or transposed."""
    node = tensor.grad_fn
    if node is None:
        return tensor is weight.parameter
    source = getattr(node.next_functions[0][0], "variable", None)
    return node.name() in _TRANSPOSED and source is weight.parameter


def _transformed() -> bool:
    """Return whether what runs now is for autograd alone: transforms (vmap), tensors kept packed.

    Packed tensors are those of an activation checkpoint, which runs once more on the way back.
    """
    if torch._C._functorch.maybe_current_level() is not None:
        return True
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


_TRANSPOSED = ("TBackward0", "TransposeBackward0", "PermuteBackward0")
_GRADIENTS = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
