"""Capture: the linear maps and embeddings that a model applies its parameters in, as they happen.

Within `Capture`, a product of inputs X with a parameter, and a look-up in one, are carried out
here: fast where the inputs are few, and without a gradient of the parameter. What that would be
made of is kept instead, the inputs X and the gradients D of the outputs. It is the use that
counts, not the module: shared weights, second calls, transposed and functional uses are all seen,
and what is not seen here (within compiled code, say) gets its gradient from autograd as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dyneval.kernels import plans, products, threads
from dyneval.kernels.linear import back_all, project_all

_FEW = 32  # inputs at once; for more, torch's own products are as fast
_WORTH = 65536  # weights for each thread more


@dataclass
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


class Products:
    """X Wᵀ and X W, for a few rows of X by the kernels, in all threads."""

    def __init__(self, dtype: torch.dtype) -> None:
        number = np.float32 if dtype == torch.float32 else np.float64
        self._plan = np.zeros(1, plans.product(number))
        self._sync = np.zeros(threads.SYNC, np.int64)
        self._partial: NDArray[Any] = np.zeros(0, number)
        self._project, self._back = project_all.compiled(number), back_all.compiled(number)
        plan = self._plan
        self._address, self._size = plan.ctypes.data, np.dtype(number).itemsize
        plan["one"], plan["size"] = 1, self._size
        plan["sync"] = self._sync.ctypes.data
        plan["project"] = products.project.address(number)
        plan["back"] = products.back.address(number)

    def apply(self, x: Tensor, weight: Weight, turned: bool) -> Tensor:
        """(…, C) -> (…, R), X Wᵀ; or turned, (…, R) -> (…, C), X W."""
        w = weight.parameter.detach()
        flat = x.reshape(-1, x.shape[-1])
        if 0 < flat.shape[0] <= _FEW:
            self._plan["backwards"] = weight.passes % 2
            weight.passes += 1
            y = self._run(self._back if turned else self._project, flat, w, w.shape[turned])
        else:
            y = flat @ (w if turned else w.t())
        return y.view(*x.shape[:-1], y.shape[-1])

    def _run(self, kernel: Any, x: Tensor, weight: Tensor, columns: int) -> Tensor:
        plan, x, (rows, inner) = self._plan, x.contiguous(), weight.shape
        few = x.shape[0]
        y = x.new_zeros(few, columns)
        count = min(torch.get_num_threads(), 1 + rows * inner // _WORTH)
        room = few * plans.width(inner, self._size)
        if self._partial.size < 2 * count * room:
            self._partial = np.zeros(2 * count * room, self._partial.dtype)
            plan["partial"] = self._partial.ctypes.data
        plan["threads"], plan["room"], plan["count"] = count, room, few
        plan["rows"], plan["columns"], plan["theta"] = rows, inner, weight.data_ptr()
        plan["x"], plan["y"] = x.data_ptr(), y.data_ptr()
        self._sync.fill(0)
        threads.run(kernel, self._address, count)
        return y


class _Map(torch.autograd.Function):
    """X Wᵀ, or X W where W was transposed; its backward keeps X and D, if W is to learn by it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor | None, use: tuple[Weight, bool, Products]
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.use, ctx.learns = use, anchor is not None
        weight, turned, run = use
        return run.apply(x, weight, turned)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (weight, turned, run) = ctx.saved_tensors, ctx.use
        if ctx.learns:
            flat = x.detach().reshape(-1, x.shape[-1])
            d = gradient.reshape(-1, gradient.shape[-1])
            weight.maps.append((d, flat) if turned else (flat, d))
        error = run.apply(gradient, weight, not turned) if ctx.needs_input_grad[0] else None
        return error, None, None


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
        d = gradient.reshape(-1, gradient.shape[-1])
        ctx.weight.lookups.append((tokens.reshape(-1), d))
        return None, None, None


class Capture(TorchFunctionMode):
    """A context in which the uses of weights are kept, and without gradients carried out only.

    Differentiate with respect to `anchor` too: it is what leads to the captured uses.
    """

    def __init__(self, weights: Iterable[Weight], dtype: torch.dtype) -> None:
        super().__init__()
        self.anchor = torch.zeros((), dtype=dtype, requires_grad=True)
        matrices = (weight for weight in weights if weight.parameter.dim() == 2)
        self._weights = {weight.parameter.data_ptr(): weight for weight in matrices}
        self._run = Products(dtype)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        route = _ROUTES.get(function)
        result = None if route is None else route(self, *args, **kwargs)
        return function(*args, **kwargs) if result is None else result

    def _find(self, tensor: Any) -> tuple[Weight, bool] | None:
        """Return the weight whose memory a tensor is, and whether as its transpose."""
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.dim() != 2:
            return None
        weight = self._weights.get(tensor.data_ptr())
        if weight is None:
            return None
        shape, stride = tuple(weight.parameter.shape), weight.parameter.stride()
        if (tuple(tensor.shape), tensor.stride()) == (shape, stride):
            return weight, False
        if (tuple(tensor.shape), tensor.stride()) == (shape[::-1], stride[::-1]):
            return weight, True
        return None

    def _anchor_of(self, weight: Weight, tensor: Tensor) -> Tensor | None:
        """Return the anchor, if a gradient by this tensor is one by the weight."""
        linked = weight.parameter is tensor or weight.parameter is tensor._base
        return self.anchor if linked and tensor.requires_grad else None

    def _map(self, x: Any, tensor: Any, turned: bool) -> Tensor | None:
        """Return X times the transpose of a weight, or times the weight itself."""
        found = self._find(tensor)
        if found is None or not isinstance(x, Tensor) or x.dtype != tensor.dtype:
            return None
        weight, is_turned = found
        inputs = tensor.shape[0 if turned else 1]
        if x.dim() == 0 or x.shape[-1] != inputs or torch.is_autocast_enabled("cpu"):
            return None
        if not torch.is_grad_enabled():
            return self._run.apply(x, weight, turned != is_turned)
        apply: Any = _Map.apply
        anchor = self._anchor_of(weight, tensor)
        result: Tensor = apply(x, anchor, (weight, turned != is_turned, self._run))
        return result

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Tensor | None:
        y = self._map(input, weight, turned=False)
        return y if y is None or bias is None else y + bias

    def _matmul(self, input: Any, other: Any, *, out: Any = None) -> Tensor | None:
        return self._map(input, other, turned=True) if out is None else None

    def _addmm(
        self, input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
    ) -> Tensor | None:
        if (beta, alpha, out) != (1, 1, None):
            return None
        y = self._map(mat1, mat2, turned=True)
        return y if y is None else input + y

    def _embedding(
        self,
        input: Any,
        weight: Any,
        padding_idx: Any = None,
        max_norm: Any = None,
        norm_type: Any = 2.0,
        scale_grad_by_freq: Any = False,
        sparse: Any = False,
    ) -> Tensor | None:
        found = self._find(weight)
        plain = padding_idx is None and max_norm is None and not scale_grad_by_freq
        if found is None or found[1] or not plain or not torch.is_grad_enabled():
            return None
        anchor = self._anchor_of(found[0], weight)
        apply: Any = _LookUp.apply
        result: Tensor | None = None if anchor is None else apply(input.long(), anchor, found[0])
        return result


_ROUTES: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: Capture._linear,
    F.embedding: Capture._embedding,
    torch.addmm: Capture._addmm,
    Tensor.addmm: Capture._addmm,
    **dict.fromkeys(
        (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__), Capture._matmul
    ),
}
