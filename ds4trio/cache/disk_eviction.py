"""Which files go when there is no room: pure.

Those that no chain leads to any more, then, one after the other, the one that is worth least among
those that no other file builds on. A chain thus loses its end first. Worth is what it is in memory
(see `worth`), but fades more slowly, and only the last use counts: that is what a file remembers.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from math import log2
from typing import TYPE_CHECKING

from ds4trio.cache.worth import cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.cache.disk_folder import Entry

#: A guess: people come back to a session after lunch, less often after a week.
HALF_LIFE_S = 6 * 3600.0


def worth(entry: Entry) -> float:
    """To be compared with others' only: a logarithm that does not change while nobody uses it."""
    name = entry.name
    saved = cost(name.start, name.stop) / max(entry.nbytes, 1)
    return log2(saved) + entry.used_ns / 1e9 / HALF_LIFE_S


def least_valuable(
    entries: Sequence[Entry], over_bytes: int, needed_key: str | None = None
) -> list[Entry] | None:
    """Entries of at least ``over_bytes``; None if there are not that many that may go.

    ``needed_key`` is a place that must stay within reach.
    """
    chosen, reachable = _split(entries)
    freed = sum(entry.nbytes for entry in chosen)
    followers = Counter(entry.name.start_key for entry in reachable)
    if needed_key is not None:
        followers[needed_key] += 1
    arriving: dict[str, list[Entry]] = {}
    for entry in reachable:
        arriving.setdefault(entry.name.key, []).append(entry)
    ends = [(worth(e), e.name, e) for e in reachable if not followers[e.name.key]]
    heapify(ends)
    while freed < over_bytes and ends:
        *_, entry = heappop(ends)
        chosen.append(entry)
        freed += entry.nbytes
        before = entry.name.start_key
        followers[before] -= 1
        if not followers[before]:
            for parent in arriving.get(before, []):
                heappush(ends, (worth(parent), parent.name, parent))
    return chosen if freed >= over_bytes else None


def _split(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Those that no chain leads to, and those that one does."""
    lost, reachable, places = [], [], set()
    for entry in sorted(entries, key=lambda entry: entry.name.start):
        if entry.name.start == 0 or entry.name.start_key in places:
            places.add(entry.name.key)
            reachable.append(entry)
        else:
            lost.append(entry)
    return lost, reachable
