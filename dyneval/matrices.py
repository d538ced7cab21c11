"""Matrices: where a module uses them, in products and look-ups, as it happens.

It is the use that counts, not the module: shared weights, second calls, transposed and functional
uses are all seen. What is not seen, within compiled code for instance, runs as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Key = TypeVar("Key")


class Watch(TorchFunctionMode, Generic[Key]):
    """A context in which some matrices are applied by `product` and `look_up`.

    Both may answer None, and then torch does it.
    """

    def __init__(self, matrices: Mapping[Key, Tensor]) -> None:
        super().__init__()
        self._matrices = {matrix.data_ptr(): (key, matrix) for key, matrix in matrices.items()}

    def product(
        self, key: Key, x: Tensor, matrix: Tensor, turned: bool, addend: Tensor | None
    ) -> Tensor | None:
        """(…, C) X -> (…, R) X Wᵀ + addend; or turned, (…, R) X -> (…, C) X W + addend.

        `matrix` is W or its transpose, as it was used.
        """
        raise NotImplementedError

    def look_up(self, key: Key, tokens: Tensor, matrix: Tensor) -> Tensor | None:
        """(…) tokens -> (…, C) rows of W."""
        raise NotImplementedError

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        route = _ROUTES.get(function)
        result = None if route is None else route(self, *args, **kwargs)
        return function(*args, **kwargs) if result is None else result

    def _find(self, tensor: Any) -> tuple[Key, bool] | None:
        """Return the key of the matrix whose memory a tensor is, and whether as its transpose."""
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.dim() != 2:
            return None
        found = self._matrices.get(tensor.data_ptr())
        if found is None:
            return None
        key, matrix = found
        shape, stride = tuple(matrix.shape), matrix.stride()
        if (tuple(tensor.shape), tensor.stride()) == (shape, stride):
            return key, False
        if (tuple(tensor.shape), tensor.stride()) == (shape[::-1], stride[::-1]):
            return key, True
        return None

    def _map(
        self, x: Any, tensor: Any, turned: bool, addend: Tensor | None = None
    ) -> Tensor | None:
        """Return X times the transpose of a tensor, or times the tensor itself, and an addend."""
        found = self._find(tensor)
        if found is None or not isinstance(x, Tensor) or x.dtype != tensor.dtype:
            return None
        key, is_turned = found
        if addend is not None and addend.dtype != x.dtype:
            return None
        inputs = tensor.shape[0 if turned else 1]
        if x.dim() == 0 or x.shape[-1] != inputs or torch.is_autocast_enabled(x.device.type):
            return None
        return self.product(key, x, tensor, turned != is_turned, addend)

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Tensor | None:
        return self._map(input, weight, False, bias)

    def _matmul(self, input: Any, other: Any, *, out: Any = None) -> Tensor | None:
        return self._map(input, other, True) if out is None else None

    def _addmm(
        self, input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
    ) -> Tensor | None:
        plain = (beta, alpha, out) == (1, 1, None)
        return self._map(mat1, mat2, True, input) if plain else None

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
        if found is None or found[1] or not plain:
            return None
        return self.look_up(found[0], input, weight)


_ROUTES: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: Watch._linear,
    F.embedding: Watch._embedding,
    torch.addmm: Watch._addmm,
    Tensor.addmm: Watch._addmm,
    **dict.fromkeys(
        (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__), Watch._matmul
    ),
}
