"""The events of one background answer, for those who come to read them, now or again.

Bounded: the oldest go first. A reader that comes too late for them is told so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ds4trio.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.protocols.wire import WireEvent

#: A guess: an answer of some ten thousand tokens.
MAX_BYTES = 4 * 1024 * 1024
#: What an event costs beside its data: a guess on the safe side.
EVENT_BYTES = 200


class EventLog:
    """Events are numbered from 0, as their ``sequence_number`` says."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._events: list[WireEvent] = []
        self._first = 0
        self._changed = trio.Event()
        self.nbytes = 0
        self.closed = False

    def append(self, events: Sequence[WireEvent]) -> None:
        self._events += events
        self.nbytes += sum([_cost(event) for event in events])
        dropped = 0
        while self.nbytes > self._max_bytes:
            self.nbytes -= _cost(self._events[dropped])
            dropped += 1
        del self._events[:dropped]
        self._first += dropped
        self._wake()

    def close(self) -> None:
        """Nothing follows."""
        self.closed = True
        self._wake()

    def check(self, after: int) -> None:
        """Raises: RequestError if what follows this number is not all there."""
        if after + 1 < self._first:
            raise RequestError(
                f"The events before {self._first} are no longer kept.", param="starting_after"
            )

    async def read(self, after: int) -> tuple[list[WireEvent], bool]:
        """All events after this number, and whether they are the last: waits until there are some,
        or the end. Raises: RequestError, as `check`."""
        while not self.closed and after + 1 >= self._end:
            await self._changed.wait()
        self.check(after)
        return self._events[after + 1 - self._first :], self.closed

    @property
    def _end(self) -> int:
        return self._first + len(self._events)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _cost(event: WireEvent) -> int:
    return len(event.data) + EVENT_BYTES
