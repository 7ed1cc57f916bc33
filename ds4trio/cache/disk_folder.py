"""The folder of segments: what is there, what is thrown out, what is set aside.

The folder itself is the index: names say all that is needed to find a chain, and every change of
the folder, whoever makes it, changes its time of modification. So several processes can share one.
Files appear by being renamed, whole, and are never written to again; whoever finds one gone has
missed, no more.

Blocks, so runs on: any thread but Trio's.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from ds4trio.cache.disk_names import SegmentName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedWriter

SEGMENTS = "segments"
BAD = "bad"
PART_SUFFIX = ".part"
#: Damaged files that are kept to be looked at.
MOST_BAD_FILES = 8
#: A folder changed less than this before it was listed may have changed again within the same tick
#: of the clock: such a listing is not relied on. Linux ticks every 1 to 10 ms.
_TICK_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A file. ``used_ns`` is when it was last of use."""

    name: SegmentName
    nbytes: int
    used_ns: int


class Listing:
    """What segments there are, as of now. Each thread has its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed_ns = -1
        self._names: dict[str, SegmentName | None] = {}  # by file; to read each only once
        self._after: dict[str, list[SegmentName]] = {}

    def after(self, key: str) -> list[SegmentName]:
        """Those that start at a place."""
        return self._after.get(key, [])

    def refresh(self) -> None:
        """See what has changed. Raises: OSError."""
        changed_ns = self._path.stat().st_mtime_ns
        if changed_ns == self._changed_ns:
            return
        known = self._names
        self._names = {
            file: known[file] if file in known else SegmentName.parse(file)
            for file in os.listdir(self._path)
        }
        self._after = {}
        for name in self._names.values():
            if name is not None:
                self._after.setdefault(name.start_key, []).append(name)
        settled = time.time_ns() - changed_ns > _TICK_NS
        self._changed_ns = changed_ns if settled else -1


@dataclass(frozen=True, slots=True)
class SegmentFolder:
    """All files, of any model. ``cache_dir`` is the user's; in it is a folder that is ours alone,
    so that nobody else's permissions are changed."""

    cache_dir: Path

    @property
    def path(self) -> Path:
        return self.cache_dir / SEGMENTS

    @property
    def bad(self) -> Path:
        """Where damaged files lie."""
        return self.path / BAD

    def prepare(self) -> None:
        """Make it usable, for its owner only, and remove what killed writers left.

        Raises: OSError if that cannot be.
        """
        self.bad.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.path, self.bad):
            folder.chmod(0o700)  # parents are made with other permissions
        for left in self.path.glob(f"*{PART_SUFFIX}"):
            _remove_if_abandoned(left)
        with self._part() as part:  # see whether that works
            part.write(b"\0")

    def file(self, name: SegmentName) -> Path:
        return self.path / str(name)

    def entries(self) -> list[Entry]:
        """All segments. Raises: OSError."""
        found = []
        with os.scandir(self.path) as files:
            for file in files:
                name = SegmentName.parse(file.name)
                if name is not None:
                    with suppress(FileNotFoundError):  # another process was faster
                        status = file.stat()
                        found.append(Entry(name, status.st_size, status.st_mtime_ns))
        return found

    def bad_files(self) -> list[tuple[Path, int]]:
        """What was set aside and its size, the oldest first. Raises: OSError."""
        found = []
        for file in self.bad.iterdir():
            with suppress(FileNotFoundError):
                status = file.stat()
                found.append((status.st_ctime_ns, file, status.st_size))
        return [(file, size) for _, file, size in sorted(found)]

    def total_bytes(self, entries: Iterable[Entry]) -> int:
        """Of all segments, which these are, and of what was set aside. Raises: OSError."""
        bad_bytes = sum(size for _, size in self.bad_files())
        return sum(entry.nbytes for entry in entries) + bad_bytes

    def put(self, name: SegmentName, pieces: Iterable[memoryview]) -> int:
        """A file, whole or not at all; returns its size. Raises: OSError.

        It is on the disk before it has its name. That costs nobody a wait but the caller, keeps
        what is unwritten from piling up in memory, and spares a machine whose power failed from
        setting torn files aside. The folder itself is not synced: a name that is lost is a miss.
        """
        with self._part() as part:
            for piece in pieces:
                part.write(piece)
            nbytes = part.tell()
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).replace(self.file(name))
        return nbytes

    def touch(self, names: Iterable[SegmentName]) -> None:
        """They were of use."""
        for name in names:
            with suppress(OSError):
                os.utime(self.file(name))

    def set_aside(self, name: SegmentName) -> None:
        """A file that cannot be trusted goes where only people look; there are never many."""
        with suppress(OSError):
            self.file(name).replace(self.bad / str(name))
            for file, _ in self.bad_files()[:-MOST_BAD_FILES]:
                file.unlink(missing_ok=True)

    def remove(self, names: Iterable[SegmentName]) -> None:
        """Raises: OSError."""
        for name in names:
            self.file(name).unlink(missing_ok=True)

    @contextmanager
    def _part(self) -> Iterator[BufferedWriter]:
        """A file under a name of its own, gone at the end if it was not renamed. It is locked,
        which says that somebody is writing it: the kernel unlocks a killed process's."""
        path = self.path / f"{uuid4().hex}{PART_SUFFIX}"
        with open(path, "xb", opener=_private) as part:
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield part
            finally:
                path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove_if_abandoned(part: Path) -> None:
    """Raises: OSError."""
    with suppress(FileNotFoundError, BlockingIOError), part.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()
