"""Whose turn it is. Pure policy.

Of all that wait, the next is, in this order of what decides:

1. one whose owner has a place left (an owner may be allowed few);
2. one of the highest priority;
3. one of the owner who has the fewest running;
4. one of the owner whose last turn is the longest ago;
5. the one that came first.

So an owner with one request does not wait for another's fifty: of n owners who always want more,
each has its turn at least once in n. A single owner's requests of one priority go first come, first
served. Higher priorities do go before all others, for as long as there are any: they are for those
who were given the right to ask for that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Share:
    """Whose a sequence is, and what is theirs.

    ``owner`` None: nobody's in particular, who is an owner like any other. ``max_running``: how
    many places the owner may take at once (None: all). A higher ``priority`` goes first.
    """

    owner: str | None = None
    max_running: int | None = None
    priority: int = 0


class Shared(Protocol):
    """What has a share."""

    @property
    def share(self) -> Share: ...


S = TypeVar("S", bound=Shared)


class FairQueue(Generic[S]):
    """Those that wait, and how many of each owner's run."""

    def __init__(self) -> None:
        self._waiting: dict[S, None] = {}  # a dict, for its order and for removal at once
        self._running: Counter[str | None] = Counter()
        self._last_turn: dict[str | None, int] = {}
        self._turns = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[S]:
        """As they came."""
        return iter(self._waiting)

    def __contains__(self, item: S) -> bool:
        return item in self._waiting

    def add(self, item: S) -> None:
        self._waiting[item] = None

    def remove(self, item: S) -> None:
        """It waits no longer."""
        del self._waiting[item]

    def next(self) -> S | None:
        """Whose turn it is; None if nobody waits whose owner has a place left."""
        able = [item for item in self._waiting if self._has_place(item.share)]
        return min(able, key=self._rank, default=None)  # of equals, the first

    def start(self, item: S) -> None:
        """It has its turn, and runs."""
        owner = item.share.owner
        del self._waiting[item]
        self._turns += 1
        self._running[owner] += 1
        self._last_turn[owner] = self._turns

    def end(self, item: S) -> None:
        """It runs no longer."""
        self._running[item.share.owner] -= 1

    def _has_place(self, share: Share) -> bool:
        return share.max_running is None or self._running[share.owner] < share.max_running

    def _rank(self, item: S) -> tuple[int, int, int]:
        owner = item.share.owner
        return -item.share.priority, self._running[owner], self._last_turn.get(owner, 0)
