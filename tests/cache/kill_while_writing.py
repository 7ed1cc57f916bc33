"""Keep a chain in the folder argv[1] again and again, killed one step later each time.

A step is a file operation below the folder, or a piece of a file that was written; the process
kills itself with SIGKILL just before the next one. After each kill what is found must be a
beginning of the chain, exactly; nothing may be set aside, and no part of a file may stay behind.
Prints the number of kills, and of the lengths found.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from disk_rig import DENSE, Disk, dense_chain, joined, same

from ds4trio.cache import disk_writer
from ds4trio.cache.disk_format import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ds4trio.cache.disk_format import Stored

IDS = random.Random(2).choices(range(1000), k=300)


class KilledAtStep:
    """Counts steps, and ends this process at one of them."""

    def __init__(self, step: int, folder: Path) -> None:
        self._left = step
        self._folder = str(folder)
        sys.addaudithook(self._audit)

    def count(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def encode(
        self, metadata: Mapping[str, str], tensors: Mapping[str, Stored]
    ) -> Iterator[memoryview]:
        for piece in encode(metadata, tensors):
            self.count()
            # In two parts, so that it is also killed in the middle of a tensor.
            data = piece.cast("B")
            yield data[: len(data) // 2]
            self.count()
            yield data[len(data) // 2 :]

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" or event.startswith("os."):
            paths = [str(argument) for argument in arguments if isinstance(argument, str | Path)]
            if any(path.startswith(self._folder) for path in paths):
                self.count()


def keep_and_die(folder: Path, step: int) -> bool:
    """In a child process; whether it came to its end before the step."""
    child = os.fork()
    if child == 0:
        killer = KilledAtStep(step, folder)
        disk_writer.encode = killer.encode  # type: ignore[attr-defined]  # the kill is injected
        disk = Disk(folder, kind=DENSE)
        for stop in (200, 300):
            disk.keep(dense_chain(IDS, stop))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def main(folder: Path) -> None:
    os.fsync = lambda fd: None  # it is the process that dies, not the machine
    kills = 0
    lengths = set()
    while not keep_and_die(folder, kills):
        kills += 1
        disk = Disk(folder, kind=DENSE)
        assert {*disk.folder.path.iterdir()} == {*disk.files(), disk.folder.bad}
        found = disk.store.find(IDS, 1)
        length = found[-1].stop if found else 0
        assert not found or same(joined(found), joined(dense_chain(IDS, length)))
        assert not disk.bad()
        lengths.add(length)
        shutil.rmtree(folder)
    print(kills, len(lengths))


main(Path(sys.argv[1]))
