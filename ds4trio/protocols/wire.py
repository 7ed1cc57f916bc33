"""One protocol as two pure interfaces: a request in, events out.

No trio, no torch, no send, no await: a protocol cannot forget a failed write, because it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent
    from ds4trio.request import GenerationRequest

    #: One item of a conversation, in the protocol's own JSON.
    Item: TypeAlias = Mapping[str, object]


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
    continuation: Continuation | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a request asks of a server that remembers answers (see `server.responses`).

    ``previous_id`` names the answer whose conversation this one continues, ``references`` single
    items of earlier answers. What is asked can only be said when they are known: ``resume`` is
    given the conversation so far and the items by id, and makes the whole request.
    ``items`` are the request's own input, to be remembered with the answer if ``store``.
    A ``background`` answer is made whether its client stays or not.
    """

    answer: RememberedAnswer
    items: tuple[Item, ...]
    previous_id: str | None
    references: tuple[str, ...]
    store: bool
    background: bool
    resume: Callable[[Sequence[Item], Mapping[str, Item]], ParsedRequest]


class RememberedAnswer(Protocol):
    """A writer whose answer can be read at any time."""

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> str:
        """``queued``, ``in_progress``, ``completed``, ``incomplete``, ``failed``, ``cancelled``."""
        ...

    def response(self) -> bytes:
        """The answer as it stands, as a JSON object."""
        ...

    def output(self) -> Sequence[Item]:
        """Its items as they stand."""
        ...


class ResponseWriter(Protocol):
    """Writes one answer. Used either as a stream (start, feed..., maybe fail) or whole.

    One instance per request; it holds what the protocol needs between events (ids, indexes).
    """

    def start(self) -> Sequence[WireEvent]:
        """What opens a stream, before any event."""
        ...

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        """The stream's words for these events. After the last choice's ``Finished`` it includes
        what ends a stream (usage, ``[DONE]``)."""
        ...

    def heartbeat(self) -> WireEvent | None:
        """A data event that says only "still here", or None where a comment line serves."""
        ...

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        """The last words of a stream that cannot go on."""
        ...

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        """The non-streaming answer for all events of a generation, up to and with the last
        ``Finished``."""
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

    def status(self, error: Ds4TrioError) -> int:
        """The HTTP status of an error answer: the error's own, where the protocol has no other."""
        ...

    def render_error(self, error: Ds4TrioError) -> bytes:
        """The JSON body of an error answer, in this protocol's shape."""
        ...
