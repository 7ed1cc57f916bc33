"""The thread that writes segments, so that the worker never waits for a disk.

What is handed over is bounded, and so is what is written: when the disk is slower than the worker,
or full, or fails, or the folder would be rewritten too often, segments are dropped. Nothing that
happens here changes an answer.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.cache.disk_eviction import least_valuable
from ds4trio.cache.disk_folder import Entry
from ds4trio.cache.disk_format import Stored, encode
from ds4trio.threads import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ds4trio.cache.disk_folder import SegmentFolder
    from ds4trio.cache.disk_names import SegmentName
    from ds4trio.cache.disk_stats import DiskStats

logger = logging.getLogger("ds4trio.cache")

#: What may wait to be written. It is held in memory meanwhile, even if all others let go of it.
MOST_QUEUED_BYTES = 512 * 1024 * 1024
#: In which as many bytes as the folder may hold can be written again. A guess: what wears a disk
#: that is rewritten every hour is not a cache that is too small for its load, but noticed late.
REFILL_S = 3600.0
#: After a write that failed.
RETRY_S = 60.0
#: For what is queued when the program ends.
FLUSH_S = 5.0
#: What a file has beside its tensors, at most.
HEADER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pending:
    """A segment to be written."""

    name: SegmentName
    metadata: Mapping[str, str]
    tensors: Mapping[str, Stored]

    @property
    def nbytes(self) -> int:
        """Of its file, or a little more."""
        return sum(tensor.nbytes for tensor in self.tensors.values()) + HEADER_BYTES


class Allowance:
    """Bytes that may be written: ``most`` at once, and as many again in each REFILL_S."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._left = float(most)
        self._at = clock()

    def take(self, nbytes: int) -> bool:
        """Whether that many may be written now."""
        now = self._clock()
        self._left += (now - self._at) / REFILL_S * self._most
        self._left = min(self._left, self._most)
        self._at = now
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True


class DiskWriter:
    """``run`` is the thread; ``offer`` and ``finished`` are the worker's, ``stop`` is anybody's.

    ``inbox`` is what ``run`` waits for and hands to ``work``: what to write, or None, the end.
    """

    def __init__(
        self,
        folder: SegmentFolder,
        budget_bytes: int,
        stats: DiskStats,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._stats = stats
        self._clock = clock
        self._allowance = Allowance(budget_bytes, clock)
        self.inbox: Inbox[Pending | None] = Inbox()
        self._finished: Inbox[SegmentName] = Inbox()
        self._offered_bytes = 0  # written by the worker alone
        self._done_bytes = 0  # written by the writer alone
        self._retry_at: float | None = None
        self._stop_at: float | None = None
        #: What is in the folder, looked up once for all that is handed over together.
        self._there: dict[SegmentName, Entry] | None = None

    def accepts(self, nbytes: int) -> bool:
        """Whether so much would be taken now. Runs on: worker."""
        retry_at = self._retry_at
        return (
            self._stop_at is None
            and (retry_at is None or self._clock() >= retry_at)
            and self._offered_bytes - self._done_bytes + nbytes <= MOST_QUEUED_BYTES
        )

    def offer(self, pending: Pending) -> None:
        """Returns at once. Its name will be among ``finished``. Runs on: worker."""
        self._offered_bytes += pending.nbytes
        self.inbox.put(pending)

    def finished(self) -> list[SegmentName]:
        """Names of what was written or given up since the last call. Runs on: worker."""
        return self._finished.take_ready()

    def stop(self) -> None:
        """Let ``run`` return soon; what is queued is written if FLUSH_S suffices."""
        self._stop_at = self._clock() + FLUSH_S
        self.inbox.put(None)

    def run(self) -> None:
        """Until told to stop. Does not raise."""
        try:
            while self.work(self.inbox.wait()):
                pass
        except Exception:
            logger.exception("cache: a bug: nothing is written to the disk any more")
            self._stop_at = self._clock()

    def work(self, items: list[Pending | None]) -> bool:
        """Write, or drop, what was handed over. False: the end is among it."""
        self._there = None  # others may have changed it meanwhile
        for item in items:
            if item is None:
                return False
            if not self._wants_to_write() or not self._write(item):
                self._stats.refused_bytes += item.nbytes
            self._done_bytes += item.nbytes
            self._finished.put(item.name)
        return True

    def _wants_to_write(self) -> bool:
        now = self._clock()
        if self._stop_at is not None and now > self._stop_at:
            return False
        return self._retry_at is None or now >= self._retry_at

    def _write(self, item: Pending) -> bool:
        """Whether it is there now."""
        try:
            done = self._put(item)
        except OSError as error:
            if self._retry_at is None:
                logger.warning(
                    "cache: cannot write to %s: %s; answers go on without, new tries follow",
                    self._folder.path,
                    error.strerror or error,
                )
            self._retry_at = self._clock() + RETRY_S
            self._there = None
            return False
        if self._retry_at is not None:
            self._retry_at = None
            logger.info("cache: %s can be written again", self._folder.path)
        return done

    def _put(self, item: Pending) -> bool:
        """Raises: OSError."""
        if self._there is None:
            self._there = {entry.name: entry for entry in self._folder.entries()}
        there = self._there
        if item.name in there:
            return True
        if item.name.start and not any(name.key == item.name.start_key for name in there):
            return False  # what it builds on was refused, or is gone by now
        if not self._make_room(item, there):
            return False
        nbytes = self._folder.put(item.name, encode(item.metadata, item.tensors))
        there[item.name] = Entry(item.name, nbytes, time.time_ns())
        self._stats.written_bytes += nbytes
        self._stats.folder_bytes += nbytes
        return True

    def _make_room(self, item: Pending, there: dict[SegmentName, Entry]) -> bool:
        """False: what is there is worth more, or enough was written for now. Raises: OSError."""
        held = self._folder.total_bytes(there.values())
        most = self._budget_bytes - item.nbytes
        for file, size in self._folder.bad_files() if held > most else []:
            file.unlink(missing_ok=True)
            held -= size
        gone: list[Entry] | None = []
        if held > most:
            gone = least_valuable([*there.values()], held - most, item.name.start_key)
        if gone is None or not self._allowance.take(item.nbytes):
            return False
        self._folder.remove(entry.name for entry in gone)
        for entry in gone:
            del there[entry.name]
        freed = sum(entry.nbytes for entry in gone)
        self._stats.evicted_bytes += freed
        self._stats.folder_bytes = held - freed
        return True
