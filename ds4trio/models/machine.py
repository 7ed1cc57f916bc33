"""What memory this machine has.

Runs on: the worker's thread or a program's that never starts one, like all that touches torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

#: Where Linux mounts a control group's memory controller, and its limit's file: version 2, then 1.
_CGROUPS = (("sys/fs/cgroup", "memory.max"), ("sys/fs/cgroup/memory", "memory.limit_in_bytes"))


@dataclass(frozen=True, slots=True)
class Machine:
    """``memory_bytes``: see `memory_bytes`. ``device_bytes``: free memory of the GPU that a model
    would be loaded to; None without.
    """

    memory_bytes: int
    device: str
    device_bytes: int | None


def this_machine(device: torch.device) -> Machine:
    """As seen from a model that is to be loaded to ``device``."""
    memory = memory_bytes()
    if device.type == "cpu":
        return Machine(memory, "cpu", None)
    free, _ = torch.cuda.mem_get_info(device)
    return Machine(memory, f"{device} ({torch.cuda.get_device_name(device)})", free)


def memory_bytes(root: Path = Path("/")) -> int:
    """What this process may use: all memory there is, or less if a control group says so.

    ``root`` is where ``proc`` and ``sys`` are mounted. Runs on: any thread.
    Source: Linux's ``admin-guide/cgroup-v2`` and ``admin-guide/cgroup-v1/memory``.
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_cgroup_limits(root)])


def kv_budget_bytes(device: torch.device, claimed_bytes: int) -> int:
    """How much sequences' states may take on a device, told from what is free there once the model
    is loaded, of which it claims some for later.

    Half of it: while one state is moved to a larger place, or kept, there are two of it, and
    everything else that the process needs comes out of the other half.
    """
    free = free_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    return max(0, free - claimed_bytes) // 2


def free_bytes(root: Path = Path("/")) -> int:
    """What this process could still take: what the machine has free, or less if a control group
    says so. ``root`` is as `memory_bytes`'. Runs on: any thread.
    """
    memory = memory_bytes(root)
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        resident = int((root / "proc/self/statm").read_text().split()[1])
    except OSError:
        return memory // 2  # not Linux
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return min(int(kibibytes) << 10, memory - resident * os.sysconf("SC_PAGE_SIZE"))


def _cgroup_limits(root: Path) -> list[int]:
    """Of this process's control groups and all above them. A container's own may be mounted in
    place of the hierarchy's top while its path still counts from there: what is not there is
    passed over.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []  # not Linux
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = _CGROUPS[bool(controllers)]
        below_top = PurePosixPath(path.lstrip("/"))
        for group in (below_top, *below_top.parents):
            try:
                limit = (root / mount / group / name).read_text().strip()
            except OSError:
                continue
            if limit.isdecimal():  # "max": none
                limits.append(int(limit))
    return limits
