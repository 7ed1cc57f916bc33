"""Memory for what is read from end to end at every step."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

#: Asked of the system at a time; it gives memory only where something is written.
_REGION_BYTES = 64 << 20
_ALIGNMENT = 64


class LargePages:
    """Hands out parts of regions that are in large pages, where the system has them.

    A step reads all weights once, 4 KiB after 4 KiB; finding each page costs what reading some of
    it does.
    """

    def __init__(self) -> None:
        self._region = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, nbytes: int) -> torch.Tensor:
        """Zeroed, or given back before. It lives as long as the tensor does."""
        if self._used + nbytes > len(self._region):
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has small pages only
            region = mmap.mmap(-1, max(nbytes, _REGION_BYTES), flags=private)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a kernel that was built without them
                    region.madvise(mmap.MADV_HUGEPAGE)
            self._region, self._used = torch.frombuffer(region, dtype=torch.uint8), 0
        part = self._region[self._used : self._used + nbytes]
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return part

    def give_back(self, part: torch.Tensor) -> None:
        """The one that was taken last."""
        self._used -= -(-len(part) // _ALIGNMENT) * _ALIGNMENT
