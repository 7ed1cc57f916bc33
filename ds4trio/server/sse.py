"""Server-sent events as bytes.

Source: WHATWG HTML, "Server-sent events".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ds4trio.protocols.wire import WireEvent

#: A line that every reader skips.
COMMENT = b": still here\n\n"


def encode(events: Iterable[WireEvent]) -> bytes:
    """All the events as one piece of a stream; nothing for none."""
    return b"".join([_encode(event) for event in events])


def heartbeat(event: WireEvent | None) -> bytes:
    """A sign of life: the protocol's own, or a comment."""
    return COMMENT if event is None else _encode(event)


def _encode(event: WireEvent) -> bytes:
    if event.name is None:
        return b"data: %b\n\n" % event.data
    return b"event: %b\ndata: %b\n\n" % (event.name.encode(), event.data)
