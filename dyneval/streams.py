"""Streams: token ids (B, T), one row a text, read from left to right in segments.

`PAD` stands behind the end of a row that is shorter than others, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

PAD = -1


class Segment(NamedTuple):
    """Tokens to read and the tokens that follow each of them, both (B, n)."""

    inputs: Tensor
    targets: Tensor


def segments(stream: Tensor, length: int) -> Iterator[Segment]:
    """Cut a (B, T) stream into consecutive segments (eq. 2).

    Every token but a row's first is a target exactly once. The last segment may be shorter. An
    input without a target is PAD as well, so that a row in a batch is read just as far as alone.

    >>> import torch
    >>> for inputs, targets in segments(torch.tensor([[1, 2, 3, 4]]), 2):
    ...     print(inputs.tolist(), targets.tolist())
    [[1, 2]] [[2, 3]]
    [[3]] [[4]]
    """
    if length < 1:
        raise ValueError(f"a segment of {length} tokens cannot be read; give 1 or more")
    for start in range(0, stream.shape[1] - 1, length):
        targets = stream[:, start + 1 : start + 1 + length]
        inputs = stream[:, start : start + targets.shape[1]]
        yield Segment(inputs.masked_fill(targets == PAD, PAD), targets)


def parallel(tokens: Tensor, rows: int) -> Tensor:
    """Cut (N,) tokens into `rows` contiguous streams of equal length; what is left over goes.

    >>> import torch
    >>> parallel(torch.arange(7), 2).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    length = len(tokens) // rows if rows > 0 else 0
    if length < 2:
        raise ValueError(
            f"{len(tokens)} tokens cannot be cut into {rows} streams of two or more; "
            "give more text or a smaller batch"
        )
    return tokens[: rows * length].view(rows, length)


def padded(rows: list[Tensor]) -> Tensor:
    """Stack streams of unequal length to (B, T), with PAD behind the shorter ones."""
    from torch.nn.utils.rnn import pad_sequence

    return pad_sequence(rows, batch_first=True, padding_value=PAD)
