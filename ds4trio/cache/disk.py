"""The cache's folder as one thing: opened before the model is, in use once it is loaded.

::

    worker  -- find, read -->  folder  <-- write, throw out --  writer
    worker  -- offer, through a bounded queue ---------------->  writer
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ds4trio.cache.disk_folder import SegmentFolder
from ds4trio.cache.disk_identity import identify
from ds4trio.cache.disk_stats import DiskStats
from ds4trio.cache.disk_store import DiskStore
from ds4trio.cache.disk_tensors import StateKind
from ds4trio.cache.disk_writer import DiskWriter
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.cache.disk_identity import Identity
    from ds4trio.models.base import CausalLM


@dataclass(frozen=True, slots=True)
class DiskCache:
    """A folder for one model. Made by ``open_disk_cache``; whoever makes it runs the ``writer``."""

    folder: SegmentFolder
    identity: Identity
    budget_bytes: int
    keep_token_ids: bool
    writer: DiskWriter
    stats: DiskStats

    def store(self, model: CausalLM) -> DiskStore:
        """Runs on: worker, once the model is loaded."""
        kind = StateKind.of(model)
        computes = f"{type(model).__module__}.{type(model).__qualname__}"
        numbers = f"{self.identity.numbers}; {computes}; {kind.words}"
        return DiskStore(
            self.folder,
            replace(self.identity, numbers=numbers),
            kind,
            self.writer,
            self.stats,
            budget_bytes=self.budget_bytes,
            keep_token_ids=self.keep_token_ids,
        )


def open_disk_cache(
    cache_dir: Path, source: Path, *, numbers: str, budget_bytes: int, keep_token_ids: bool
) -> DiskCache:
    """For the model in a folder or file, which computes as ``numbers`` says (see `Identity`).

    Blocks, so runs on: any thread but Trio's. Raises: ConfigError if the folder cannot be used.
    """
    folder = SegmentFolder(cache_dir)
    try:
        folder.prepare()
        stats = DiskStats(folder_bytes=folder.total_bytes(folder.entries()))
    except OSError as error:
        raise ConfigError(f"cache_dir: {cache_dir}: {error.strerror or error}") from None
    try:
        identity = identify(source, numbers)
    except OSError as error:
        raise ConfigError(f"cache_dir: cannot tell which model {source} is: {error}") from None
    writer = DiskWriter(folder, budget_bytes, stats)
    return DiskCache(folder, identity, budget_bytes, keep_token_ids, writer, stats)
