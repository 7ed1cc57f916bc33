"""``ds4trio cache ls | rm | verify``: look at a folder of segments, clear it, check it.

A *prefix* is what some request has ended with: a chain of files that no other file goes on from.
It is called by the beginning of its last key. All this may run beside a server that uses the
folder.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.cache.disk_folder import Entry, SegmentFolder
from ds4trio.cache.disk_format import DamagedFileError, read
from ds4trio.cache.disk_identity import Identity
from ds4trio.cache.disk_metadata import metadata_of, mismatch
from ds4trio.cache.disk_names import MODEL_DIGITS, SegmentName
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

#: Digits of a key that tell prefixes apart.
KEY_SHOWN = 12


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """Its files in order, with what it shares with others."""

    files: Sequence[Entry]

    @property
    def key(self) -> str:
        return self.files[-1].name.key[:KEY_SHOWN]

    @property
    def tokens(self) -> int:
        return self.files[-1].name.stop

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.files)

    def as_dict(self) -> dict[str, object]:
        return {
            "prefix": self.key,
            "model": self.files[-1].name.model,
            "tokens": self.tokens,
            "bytes": self.nbytes,
            "used_at": self.files[-1].used_ns / 1e9,
        }


def kept_prefixes(cache_dir: Path) -> list[KeptPrefix]:
    """Those used last first. Raises: ConfigError."""
    entries = _entries(SegmentFolder(cache_dir))
    into = {entry.name.key: entry for entry in entries}
    gone_on_from = {entry.name.start_key for entry in entries}
    prefixes = [
        KeptPrefix(_chain(entry, into)) for entry in entries if entry.name.key not in gone_on_from
    ]
    return sorted(prefixes, key=lambda prefix: -prefix.files[-1].used_ns)


def prefix_table(prefixes: Sequence[KeptPrefix]) -> str:
    """For people."""
    lines = [f"{'prefix':14}{'model':18}{'tokens':>9}{'MB':>10}  last used"]
    for prefix in prefixes:
        last = prefix.files[-1]
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.used_ns / 1e9))
        megabytes = f"{prefix.nbytes / 1e6:,.1f}"
        lines.append(
            f"{prefix.key:14}{last.name.model:18}{prefix.tokens:>9,}{megabytes:>10}  {used}"
        )
    files = {entry.name: entry.nbytes for prefix in prefixes for entry in prefix.files}
    together = sum(files.values()) / 1e6
    lines.append(f"{len(prefixes)} prefixes in {len(files)} files, {together:,.1f} MB together")
    return "\n".join(lines)


def remove_prefixes(cache_dir: Path, keys: Collection[str] | None) -> tuple[int, int]:
    """All (None), or those whose keys begin so, but for what others share with them.

    Returns the number of files and of bytes. Raises: ConfigError, also if there is no such prefix.
    """
    folder = SegmentFolder(cache_dir)
    if keys is None:
        gone = _entries(folder)
    else:
        prefixes = kept_prefixes(cache_dir)
        for key in keys:
            if not any(prefix.key.startswith(key) for prefix in prefixes):
                raise ConfigError(f"{key}: no such prefix; ds4trio cache ls shows all")
        chosen = [p for p in prefixes if any(p.key.startswith(key) for key in keys)]
        needed = Counter(entry.name for p in prefixes if p not in chosen for entry in p.files)
        unshared = {e.name: e for p in chosen for e in p.files if not needed[e.name]}
        gone = list(unshared.values())
    try:
        # From the ends on: a reader must not find what it cannot come to.
        folder.remove(entry.name for entry in sorted(gone, key=lambda e: -e.name.start))
        for file, _ in folder.bad_files() if keys is None and gone else []:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cache_dir: {cache_dir}: {error.strerror}") from None
    return len(gone), sum(entry.nbytes for entry in gone)


def damaged_files(cache_dir: Path) -> tuple[int, list[tuple[SegmentName, str]]]:
    """Read every file; set aside those that are not what they should be.

    Returns how many were read, and for each that was set aside why. Raises: ConfigError.
    """
    folder = SegmentFolder(cache_dir)
    entries = _entries(folder)
    damaged = []
    for entry in entries:
        try:
            contents = read(folder.file(entry.name), entry.nbytes)
            found = contents.metadata
            words = [found.get(field, "") for field in ("model", "tokenizer", "numbers")]
            identity = Identity(*words)
            wrong = mismatch(found, metadata_of(identity, entry.name, None))
            if identity.digest[:MODEL_DIGITS] != entry.name.model:
                wrong = "it is of another model"
        except FileNotFoundError:  # thrown out meanwhile
            continue
        except DamagedFileError as error:
            wrong = str(error)
        except OSError as error:
            wrong = error.strerror or str(error)
        if wrong is not None:
            folder.set_aside(entry.name)
            damaged.append((entry.name, wrong))
    return len(entries), damaged


def _entries(folder: SegmentFolder) -> list[Entry]:
    """Raises: ConfigError if the folder cannot be read; one that is not there is empty."""
    try:
        return folder.entries()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cache_dir: {folder.cache_dir}: {error.strerror}") from None


def _chain(last: Entry, into: dict[str, Entry]) -> list[Entry]:
    chain = [last]
    while (before := into.get(chain[-1].name.start_key)) and before.name.stop < chain[-1].name.stop:
        chain.append(before)
    return chain[::-1]
