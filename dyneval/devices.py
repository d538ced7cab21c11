"""Devices: where a model computes. Texts stay on the CPU; a reader moves what it reads."""

from __future__ import annotations

import torch


def find(name: str) -> torch.device:
    """Return the device of a name (cpu, cuda, cuda:1); `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros((), device=device).item()  # that it is there, and holds numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"there is no device {name!r} here ({reason}); give auto, cpu, cuda or cuda:0"
        ) from None
    return device


def describe(device: torch.device) -> str:
    """Return what a result says of a device: a GPU's name too."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"
