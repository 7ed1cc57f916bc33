"""One protocol as two pure interfaces: a request in, events out.

No trio, no torch, no send, no await: a protocol cannot forget a failed write, because it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent
    from ds4trio.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class WireEvent:
    """One server-sent event. ``name`` is the ``event:`` line (None: no such line), ``data`` the
    payload, already one line of JSON (or a literal such as ``[DONE]``)."""

    data: bytes
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """What a client wants: the generation, how it wants to read it, and who writes it."""

    generation: GenerationRequest
    stream: bool
    writer: ResponseWriter


class ResponseWriter(Protocol):
    """Writes one answer. Used either as a stream (start, feed..., maybe fail) or whole.

    One instance per request; it holds what the protocol needs between events (ids, indexes).
    """

    def start(self) -> Sequence[WireEvent]:
        """What opens a stream, before any event."""
        ...

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        """The stream's words for these events. After ``Finished`` it includes what ends a stream
        (usage, ``[DONE]``)."""
        ...

    def heartbeat(self) -> WireEvent | None:
        """A data event that says only "still here", or None where a comment line serves."""
        ...

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        """The last words of a stream that cannot go on."""
        ...

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        """The non-streaming answer for all events of a generation, up to and with ``Finished``."""
        ...


class WireProtocol(Protocol):
    """One endpoint's dialect."""

    @property
    def name(self) -> str:
        """Short name for metrics and logs: ``chat``, ``completions``, ..."""
        ...

    @property
    def path(self) -> str:
        """Route, such as ``/v1/chat/completions``."""
        ...

    def parse(self, body: bytes, served_model_name: str) -> ParsedRequest:
        """Raises: RequestError naming the field."""
        ...

    def render_error(self, error: Ds4TrioError) -> bytes:
        """The JSON body of an error answer, in this protocol's shape."""
        ...
