"""What a stream says, from wherever it comes. Knows nothing of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ds4trio.events import Finished

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent
    from ds4trio.protocols.wire import ResponseWriter, WireEvent
    from ds4trio.reply import Reply


class Words(Protocol):
    """One stream."""

    async def more(self) -> tuple[Sequence[WireEvent], bool]:
        """What is to be said next, and whether it is the last. If cancelled, nothing is lost."""
        ...

    def heartbeat(self) -> WireEvent | None:
        """A sign of life, or None where a comment will do."""
        ...

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        """Last words, if it cannot go on."""
        ...


class Spoken:
    """A reply in its protocol's words. ``note`` is called each time something was received."""

    def __init__(self, reply: Reply, writer: ResponseWriter, note: Callable[[Reply], None]) -> None:
        self._reply = reply
        self._writer = writer
        self._note = note
        self.heartbeat = writer.heartbeat
        self.fail = writer.fail

    async def more(self) -> tuple[Sequence[WireEvent], bool]:
        events = await self._reply.receive()
        self._note(self._reply)
        return self._writer.feed(events), is_end(events)


def is_end(events: Sequence[GenerationEvent]) -> bool:
    """Whether nothing follows: the last of the answers has finished."""
    return bool(events) and isinstance(last := events[-1], Finished) and last.remaining == 0
