"""What was computed for a prompt, kept in memory for whoever begins alike.

Saved in pieces while it is computed, found by token ids, restored by copying; so nobody holds what
is in here, and anything in it may be dropped at any time. Runs on: worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from ds4trio.cache.eviction import cheapest_first
from ds4trio.cache.segment import Segment
from ds4trio.cache.tree import PrefixTree, Use
from ds4trio.cache.words import EvictionReason
from ds4trio.cache.worth import cost, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from ds4trio.cache.eviction import Victim
    from ds4trio.cache.segment import SegmentStore
    from ds4trio.cache.tree import Node
    from ds4trio.cache.words import CacheSource
    from ds4trio.models.base import SequenceState, StateLayout


@dataclass(frozen=True, slots=True)
class Match:
    """What is known of a prompt: pieces to restore its first ``length`` tokens from.

    ``shared``: how many of its tokens another sequence has begun with too. It is more than
    ``length`` where there is no tip at the place at which the two part.
    """

    length: int
    shared: int
    pieces: Sequence[Mapping[str, torch.Tensor]]
    source: CacheSource | None


class PrefixCache:
    """Prefixes within a number of bytes, which its owner may change (``resize``).

    ``evictions`` counts what was dropped, tips and segments alike.
    """

    def __init__(self, layout: StateLayout, store: SegmentStore | None = None) -> None:
        self.evictions: dict[EvictionReason, int] = dict.fromkeys(get_args(EvictionReason), 0)
        self._layout = layout
        self._store = store
        self._tree = PrefixTree(layout)
        self._most_bytes = 0

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes

    def resize(self, most_bytes: int) -> None:
        """From now on, hold no more than this: what is worth least goes at once."""
        self._most_bytes = most_bytes
        for victim in cheapest_first(self._tree) if self._tree.nbytes > most_bytes else ():
            self._evict(victim, "running")
            if self._tree.nbytes <= most_bytes:
                break

    def find(self, token_ids: tuple[int, ...], most: int, at: float) -> Match:
        """The longest prefix that can be restored, of at most ``most`` tokens."""
        path, shared = self._tree.walk(token_ids[:most])
        length = self._tree.last_place(path, shared)
        if self._store is not None and length < most:
            chain = self._store.find(token_ids, length + 1, shared)
            stored = self._usable(path, chain, most)
            if stored.length > length:
                return stored
        used = [node for node in path if node.segment.start < length]
        for node in used:
            node.use = Use(at, node.use.hits + 1)
        if used:
            used[-1].tip_use = Use(at, used[-1].tip_use.hits + 1)
        pieces = self._cut([node.segment for node in used], length)
        return Match(length, shared, pieces, "memory" if length else None)

    def known(self, token_ids: tuple[int, ...]) -> int:
        """How many of these tokens can be restored."""
        return self._tree.last_place(*self._tree.walk(token_ids))

    def insert(
        self, token_ids: tuple[int, ...], state: SequenceState, total_tokens: int, at: float
    ) -> bool:
        """Keep what ``state`` has computed of ``token_ids``, as far as it is not known yet and
        worth more than what would have to go for it. Says whether all of it is kept now.

        ``total_tokens``: how long the sequence will be at least, which tells what it is worth.
        """
        length = state.length
        path, matched = self._tree.walk(token_ids[:length])
        for node in path:
            node.use.at = at
        if matched == length and self._tree.last_place(path, matched) == length:
            return True
        new_tokens = length - self._tree.last_place(path, matched)
        worth = score(
            cost(total_tokens - new_tokens, total_tokens), self._new_bytes(matched, length), Use(at)
        )
        if not self._make_room(self._new_bytes(matched, length), worth, path):
            return False
        node = path[-1] if path else self._tree.root
        if matched < node.segment.stop:
            node = self._tree.split(node, matched)
        new = Segment(matched, length, tuple(token_ids[matched:length]), state.save(matched))
        if matched < length:
            self._tree.add(node, new, at)
        else:
            self._tree.add_tip(node, new, at)
        return True

    def offer(self, token_ids: tuple[int, ...], places: Sequence[int] = ()) -> None:
        """Offer what is kept of these to what keeps it beyond memory: see `SegmentStore`."""
        path, _ = self._tree.walk(token_ids)
        if self._store is not None and path:
            self._store.offer(path[-1].chain, places)

    def drop(self, token_ids: tuple[int, ...]) -> None:
        """Going on from what is kept of these has failed: forget all that begins as they do."""
        path, _ = self._tree.walk(token_ids)
        doomed = path[:1]
        for node in doomed:
            doomed += node.children.values()
        for node in reversed(doomed):
            self._tree.remove(node)
        if self._store is not None:
            self._store.drop(token_ids)

    def _new_bytes(self, known: int, length: int) -> int:
        """Of what a state of ``length`` adds to what is known of its tokens."""
        rows = self._layout.nbytes(length) - self._layout.nbytes(known)
        return rows + self._layout.tip_bytes

    def _usable(self, path: Sequence[Node], chain: Sequence[Segment], most: int) -> Match:
        """What of a stored chain, which may start somewhere along a path, can be gone on from."""
        length = min(chain[-1].stop, most) if chain else 0
        if self._tree.has_tips:
            stops = [segment.stop for segment in chain if segment.has_tip]
            length = max((stop for stop in stops if stop <= most), default=0)
        start = chain[0].start if chain else 0
        held = [node.segment for node in path if node.segment.start < start]
        used = [segment for segment in chain if segment.start < length]
        return Match(length, length, self._cut(held, start) + self._cut(used, length), "disk")

    def _cut(self, segments: Sequence[Segment], length: int) -> list[Mapping[str, torch.Tensor]]:
        pieces = [segment.tensors for segment in segments]
        if segments and segments[-1].stop > length:
            pieces[-1] = self._tree.beginning(segments[-1], length)
        return pieces

    def _make_room(self, nbytes: int, worth: float, path: Sequence[Node]) -> bool:
        """For something of this size and worth, that hangs on a path. False: it is not worth it,
        and nothing was dropped.
        """
        missing = nbytes - (self._most_bytes - self._tree.nbytes)
        going: list[Victim] = []
        # Looked through before anything goes: half of what is needed is of no use.
        for victim in cheapest_first(self._tree, path) if missing > 0 else ():
            if victim.score >= worth:
                break
            going.append(victim)
            missing -= victim.nbytes
            if missing <= 0:
                break
        if missing > 0:
            return False
        for victim in going:
            self._evict(victim, "worth")
        return True

    def _evict(self, victim: Victim, reason: EvictionReason) -> None:
        if victim.tip_only:
            self._tree.drop_tip(victim.node)
        else:
            self._tree.remove(victim.node)
        self.evictions[reason] += 1
