"""Processes: several that work on one task, as torchrun starts them.

Each reads its share of the streams, and what they find is averaged: the mean over processes of
the means over equal shares is the mean over all. Every process calls what is collective here in
the same order. A process that nobody started beside others is a group of its own.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

from dyneval import devices


@dataclass(frozen=True)
class Group:
    """This process among `size` of them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those on this machine

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Return the device of a name; of several GPUs, each process of a machine takes its own."""
        device = devices.find(name)
        if device.type == "cuda" and device.index is None and self.size > 1:
            device = devices.find(f"cuda:{self.local_rank}")
            torch.cuda.set_device(device)
        return device

    def rows(self, stream: Tensor) -> Tensor:
        """(B, T) streams -> (B / size, T), those of this process."""
        if len(stream) % self.size:
            raise ValueError(
                f"{len(stream)} streams cannot be shared equally by {self.size} processes; give a "
                f"batch size that is a multiple of {self.size}"
            )
        share = len(stream) // self.size
        return stream[self.rank * share : (self.rank + 1) * share]

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Put the mean over processes into each of some tensors of one type."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        flat /= self.size
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def any(self, *flags: bool) -> list[bool]:
        """Tell of each flag whether it is raised in any process."""
        if self.size == 1:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.int32)
        distributed.all_reduce(raised)
        return [bool(count) for count in raised.tolist()]

    def wait(self) -> None:
        """Go on when every process has come here: what the first one wrote is there."""
        if self.size > 1:
            distributed.barrier()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of each process, in their order; all are of one shape."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        distributed.all_gather(parts, tensor.contiguous())
        return parts


ALONE = Group()


def join() -> Group:
    """Return this process' group: that of torchrun, or none but itself."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=timedelta(minutes=30))
        atexit.register(distributed.destroy_process_group)
    return Group(distributed.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")))
