"""Chains of segments as files: found, read and offered on the worker thread.

A chain is cut at every multiple of BLOCK_TOKENS, so that two chains with the same beginning share
its files, and wherever it ended when it was offered, so that one that grows is written once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ds4trio.cache.disk_folder import Listing
from ds4trio.cache.disk_format import DamagedFileError, read
from ds4trio.cache.disk_metadata import metadata_of, mismatch
from ds4trio.cache.disk_names import PrefixKeys, path_to, reach
from ds4trio.cache.disk_tensors import stored, tensor_of
from ds4trio.cache.disk_writer import Pending
from ds4trio.cache.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ds4trio.cache.disk_folder import SegmentFolder
    from ds4trio.cache.disk_identity import Identity
    from ds4trio.cache.disk_names import SegmentName
    from ds4trio.cache.disk_stats import DiskStats
    from ds4trio.cache.disk_tensors import StateKind
    from ds4trio.cache.disk_writer import DiskWriter

logger = logging.getLogger("ds4trio.cache")

#: Two chains that part share all files before the last multiple of this: what is written twice is
#: less. A guess; smaller files cost more syncs of the disk.
BLOCK_TOKENS = 256


class DiskStore:
    """A ``SegmentStore``. Made and used on: worker."""

    def __init__(
        self,
        folder: SegmentFolder,
        identity: Identity,
        kind: StateKind,
        writer: DiskWriter,
        stats: DiskStats,
        *,
        budget_bytes: int,
        keep_token_ids: bool,
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._digest = identity.digest
        self._kind = kind
        self._writer = writer
        self._stats = stats
        self._budget_bytes = budget_bytes
        self._keep_token_ids = keep_token_ids
        self._listing = Listing(folder.path)
        self._pending: dict[str, list[SegmentName]] = {}
        self._readable = True

    def find(self, token_ids: Sequence[int], at_least: int, held: int = 0) -> list[Segment]:
        """See `SegmentStore`. Reads whole files; for a model with tips the last one has one."""
        names = self._path(token_ids)
        chain: list[Segment] = []
        if names and names[-1].stop >= at_least:
            for name in names:
                if name.stop <= held:
                    continue
                segment = self._read(name, tuple(token_ids[name.start : name.stop]))
                if segment is None:
                    break
                chain.append(segment)
        while chain and self._kind.tips and not chain[-1].has_tip:
            chain.pop()  # it was to end in another one, which cannot be read
        self._folder.touch(name for name in names if chain and name.stop <= chain[-1].stop)
        if not chain or chain[-1].stop < at_least:
            self._stats.misses += 1
            return []
        self._stats.hits += 1
        return chain

    def offer(self, chain: Sequence[Segment], places: Sequence[int] = ()) -> None:
        """See `SegmentStore`. What is queued is not copied if it lies in the CPU's memory."""
        for name in self._writer.finished():
            waiting = self._pending.pop(name.start_key, [])
            if others := [other for other in waiting if other != name]:
                self._pending[name.start_key] = others
        if not self._writer.accepts(0) or not self._refresh():
            return
        token_ids = [token_id for segment in chain for token_id in segment.token_ids]
        keys = PrefixKeys(self._digest, token_ids)
        reached = reach(self._known, keys, len(token_ids))
        missing = _missing(chain, places, reached)
        if missing:  # what they build on must not be thrown out meanwhile
            self._folder.touch(path_to(_last_before(missing[0], reached), reached))
        for stop in missing:
            start = _last_before(stop, reached)
            for piece in self._pieces(chain, start, stop):
                name = keys.name(piece.start, piece.stop, has_tip=piece.has_tip)
                if not self._queue(name, piece):
                    return
                reached[piece.stop] = name

    def drop(self, token_ids: Sequence[int]) -> None:
        """Going on from what is kept of these tokens has failed: it is set aside."""
        for name in self._path(token_ids):
            self._set_aside(name, "going on from it failed")

    def _refresh(self) -> bool:
        """See what is in the folder now. False: that cannot be seen."""
        try:
            self._listing.refresh()
        except OSError as error:
            if self._readable:  # one line, not one a request
                logger.warning("cache: cannot read %s: %s", self._folder.path, error.strerror)
            self._readable = False
            return False
        if not self._readable:
            logger.info("cache: %s can be read again", self._folder.path)
        self._readable = True
        return True

    def _known(self, key: str) -> list[SegmentName]:
        """What starts at a place, or soon will."""
        return self._listing.after(key) + self._pending.get(key, [])

    def _path(self, token_ids: Sequence[int]) -> list[SegmentName]:
        """The longest there is for the beginning of these tokens, to a place to go on from."""
        if not self._refresh():
            return []
        keys = PrefixKeys(self._digest, token_ids)
        reached = reach(self._listing.after, keys, len(token_ids))
        ends = [p for p, name in reached.items() if name.has_tip or not self._kind.tips]
        return path_to(max(ends, default=0), reached)

    def _read(self, name: SegmentName, token_ids: tuple[int, ...]) -> Segment | None:
        file = self._folder.file(name)
        try:
            contents = read(file, self._budget_bytes)
        except FileNotFoundError:  # thrown out meanwhile, by another process
            return None
        except OSError as error:
            logger.warning("cache: cannot read %s: %s", file, error.strerror)
            return None
        except DamagedFileError as error:
            self._set_aside(name, str(error))
            return None
        wanted = metadata_of(self._identity, name, token_ids)
        if wrong := mismatch(contents.metadata, wanted):
            self._set_aside(name, wrong)
            return None
        tensors = {
            key: tensor_of(tensor, self._kind.device) for key, tensor in contents.tensors.items()
        }
        segment = Segment(name.start, name.stop, token_ids, tensors)
        if segment.has_tip != name.has_tip or not self._kind.fits(segment):
            self._set_aside(name, "its tensors are not this model's")
            return None
        return segment

    def _set_aside(self, name: SegmentName, reason: str) -> None:
        logger.warning("cache: %s is set aside, in %s: %s", name, self._folder.bad, reason)
        self._folder.set_aside(name)

    def _pieces(self, chain: Sequence[Segment], start: int, stop: int) -> Iterator[Segment]:
        """What a chain has from a place to another one, cut at each border of a block."""
        while start < stop:
            border = min(stop, (start // BLOCK_TOKENS + 1) * BLOCK_TOKENS)
            yield self._kind.part(chain, start, border)
            start = border

    def _queue(self, name: SegmentName, piece: Segment) -> bool:
        if not self._writer.accepts(piece.nbytes):
            self._stats.unqueued_bytes += piece.nbytes
            return False
        told = piece.token_ids if self._keep_token_ids else None
        metadata = metadata_of(self._identity, name, told)
        tensors = {key: stored(tensor) for key, tensor in piece.tensors.items()}
        self._writer.offer(Pending(name, metadata, tensors))
        self._pending.setdefault(name.start_key, []).append(name)
        return True


def _missing(
    chain: Sequence[Segment], places: Sequence[int], reached: Mapping[int, SegmentName]
) -> list[int]:
    """Where files should end that are not there yet: at tips, at places, and where the chain ends.

    What lies within a file that is there already is not written again but for a tip.
    """
    known, end = max(reached, default=0), chain[-1].stop
    tips = {s.stop for s in chain if s.has_tip}
    tips -= {place for place, name in reached.items() if name.has_tip}
    others = {place for place in (*places, end) if known < place <= end}
    return sorted(tips | others)


def _last_before(stop: int, reached: Mapping[int, SegmentName]) -> int:
    return max((place for place in reached if place < stop), default=0)
