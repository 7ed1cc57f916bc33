"""Folders that appear whole or not at all, whoever dies when.

A folder is built beside its place under a temporary name, by one process at a time, flushed to
the disk, and renamed. What a killed process leaves behind is removed by the next one.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ds4trio.store.progress import Progress


@contextmanager
def exclusive(target: Path, progress: Progress) -> Iterator[None]:
    """Be the only process (and thread) that builds ``target``. The kernel frees a dead one's lock.

    Raises: OSError if the lock's folder cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(target)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.note(f"waiting for another process that is preparing {target.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """A fresh folder beside ``target``, gone afterwards. Needs: ``exclusive``.

    Its name is never used twice: a download that outlived its killed parent may still be writing
    into an older one.
    """
    _remove(_staging_folders(target))
    folder = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale(target: Path) -> None:
    """Remove what a killed process left beside a finished ``target``, if that can be done now."""
    if not _staging_folders(target):
        return
    try:
        with _lock(target).acquire(timeout=0):
            _remove(_staging_folders(target))
    except (Timeout, OSError):  # somebody is building, or we may not write here
        return


def publish(built: Path, target: Path, staging: Path) -> None:
    """Put a finished folder in its place; an older one moves into ``staging``.

    Needs: ``exclusive``. Between the two renames there is no ``target`` at all; there never is a
    mixed one.
    """
    for file in built.iterdir():
        _sync(file)
    _sync(built)
    if target.exists():
        target.rename(staging / "replaced")
    built.rename(target)
    _sync(target.parent)


def _lock(target: Path) -> FileLock:
    return FileLock(target.parent / f".{target.name}.lock")


def _staging_folders(target: Path) -> list[Path]:
    return list(target.parent.glob(f".{target.name}.*.tmp"))


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
