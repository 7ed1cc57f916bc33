"""What memory this machine has.

Runs on: the worker's thread or a program's that never starts one, like all that touches torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """``device_bytes``: free memory of the GPU that a model would be loaded to; None without."""

    memory_bytes: int
    device: str
    device_bytes: int | None


def this_machine(device: torch.device) -> Machine:
    """As seen from a model that is to be loaded to ``device``."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cpu":
        return Machine(memory_bytes, "cpu", None)
    free, _ = torch.cuda.mem_get_info(device)
    return Machine(memory_bytes, f"{device} ({torch.cuda.get_device_name(device)})", free)
