"""Memory as the machine has it and as control groups limit it. Linux's files, made by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from ds4trio.models.machine import free_bytes, kv_budget_bytes, memory_bytes, this_machine

if TYPE_CHECKING:
    from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
PHYSICAL = os.sysconf("SC_PHYS_PAGES") * PAGE
NO_LIMIT_V1 = "9223372036854771712"
V1 = "12:pids:/x\n4:cpu,memory:{path}\n1:name=systemd:/x\n0::/x\n"

LIMITS = {
    "no control groups": (None, {}, PHYSICAL),
    "v2": ("0::/\n", {"memory.max": "1048576"}, 1048576),
    "v2 without a limit": ("0::/\n", {"memory.max": "max"}, PHYSICAL),
    "v2, the group above is tighter": (
        "0::/pod/box\n",
        {"memory.max": "max", "pod/memory.max": "4096", "pod/box/memory.max": "8192"},
        4096,
    ),
    "v2, a neighbour's limit": ("0::/a\n", {"a/memory.max": "8192", "b/memory.max": "1"}, 8192),
    "v2, moved out of its namespace": ("0::/../b\n", {"memory.max": "8192"}, 8192),
    "v1": (V1.format(path="/x"), {"memory/x/memory.limit_in_bytes": "8192"}, 8192),
    "v1 without a limit": (
        V1.format(path="/x"),
        {"memory/x/memory.limit_in_bytes": NO_LIMIT_V1},
        PHYSICAL,
    ),
    "v1, a container's own group mounted on top": (
        V1.format(path="/docker/0f1e"),
        {"memory/memory.limit_in_bytes": "8192"},
        8192,
    ),
    "more than there is": ("0::/\n", {"memory.max": str(PHYSICAL * 2)}, PHYSICAL),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_tightest_limit_counts(name: str, tmp_path: Path) -> None:
    groups, files, expected = LIMITS[name]
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for path, content in files.items():
        file = tmp_path / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    assert memory_bytes(tmp_path) == expected


MEMINFO = "MemTotal: 64 kB\nMemFree: 8 kB\nMemAvailable: {} kB\nBuffers: 4 kB\n"


@pytest.mark.parametrize(
    ("available_kb", "limit", "expected"),
    [
        (40, "max", 40 << 10),
        (1 << 40, str(PAGE * 50), PAGE * 47),  # the process has 3 pages
    ],
)
def test_what_is_free_is_what_the_machine_and_the_group_leave(
    tmp_path: Path, available_kb: int, limit: str, expected: int
) -> None:
    for path, content in {
        "proc/self/cgroup": "0::/\n",
        "proc/self/statm": "100 3 2 1 0 50 0\n",
        "proc/meminfo": MEMINFO.format(available_kb),
        "sys/fs/cgroup/memory.max": f"{limit}\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert free_bytes(tmp_path) == expected


def test_half_of_what_is_free_and_not_claimed_is_for_states() -> None:
    half = kv_budget_bytes(torch.device("cpu"), claimed_bytes=0)
    assert 0 < half <= PHYSICAL // 2
    assert kv_budget_bytes(torch.device("cpu"), claimed_bytes=PHYSICAL) == 0


def test_the_machine_is_asked_the_same_way() -> None:
    assert this_machine(torch.device("cpu")).memory_bytes == memory_bytes() <= PHYSICAL
