"""The memory of sequences' states: what those that run hold, and what is left for the cache.

Both share one budget. Running sequences come first: what they are granted is taken from what is
kept of those that ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.engine.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.cache.prefix import PrefixCache
    from ds4trio.engine.sequence import JobSequence
    from ds4trio.models.base import StateLayout

#: Tokens of an answer that there is room for from the start. A guess.
FIRST_TOKENS = 64
#: What of the budget is never given to the cache, so that a short request does not cost a long
#: conversation its end: 1 / 8, a guess.
WORKING_SHARE = 8


class KvMemory:
    """Runs on: worker.

    For each sequence ``open``, which says whether it may run now; before each of its forwards
    ``make_room``; and ``close`` when it has ended, however that came. ``cache`` None: nothing is
    kept.
    """

    def __init__(self, layout: StateLayout, budget: int, cache: PrefixCache | None) -> None:
        self.budget = budget
        self._layout = layout
        self._cache = cache
        self._ledger: Ledger[JobSequence] = Ledger(budget)
        self._room_tokens: dict[JobSequence, int] = {}
        self._share()

    @property
    def running_bytes(self) -> int:
        """Granted to all sequences together."""
        return self._ledger.granted

    def open(self, sequence: JobSequence) -> bool:
        """Grant it memory for its prompt, or say that it must wait for others to end."""
        room = min(len(sequence.prompt) + FIRST_TOKENS, sequence.most_tokens)
        nbytes = self._layout.nbytes
        if not self._ledger.open(sequence, nbytes(room), nbytes(sequence.most_tokens)):
            return False
        self._room_tokens[sequence] = room
        self._share()
        return True

    def room_tokens(self, sequence: JobSequence) -> int:
        """How long it may get with what it was granted."""
        return self._room_tokens[sequence]

    def make_room(self, sequence: JobSequence, tokens: int) -> bool:
        """For so many tokens more; or say that it must wait for others to end."""
        room = self._room_tokens[sequence]
        needed = min(sequence.state.length + tokens, sequence.most_tokens)
        if needed > room:
            room = self._grant(sequence, needed, (2 * room, needed + FIRST_TOKENS, needed))
        sequence.state.allocate(room)
        return needed <= room

    def close(self, sequence: JobSequence) -> None:
        """It has ended, or never ran."""
        if self._room_tokens.pop(sequence, None) is not None:
            self._ledger.close(sequence)
            self._share()

    def _grant(self, sequence: JobSequence, needed: int, wishes: Sequence[int]) -> int:
        """Room for the first of so many tokens that can be had; returns what it has now."""
        for wish in wishes:
            room = min(max(needed, wish), sequence.most_tokens)
            if self._ledger.grant(sequence, self._layout.nbytes(room)):
                self._share()
                self._room_tokens[sequence] = room
                break
        return self._room_tokens[sequence]

    def _share(self) -> None:
        """What no running sequence needs is the cache's."""
        if self._cache is not None:
            taken = max(self._ledger.granted, self.budget // WORKING_SHARE)
            self._cache.resize(self.budget - taken)
