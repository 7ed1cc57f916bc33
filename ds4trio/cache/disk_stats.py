"""What the folder of segments has done, and holds, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DiskStats:
    """Counts since the start. Units: bytes; lookups.

    Each field is written by one thread only, and may be read by any.
    """

    #: By the writer. Of all files in the folder, whoever wrote them, when it last looked.
    folder_bytes: int = 0
    written_bytes: int = 0
    evicted_bytes: int = 0
    #: What it was offered and did not write: the disk failed, or was written enough.
    refused_bytes: int = 0
    #: By the worker. What it did not even offer: the writer had too much to do.
    unqueued_bytes: int = 0
    hits: int = 0
    misses: int = 0

    @property
    def dropped_bytes(self) -> int:
        return self.refused_bytes + self.unqueued_bytes
