"""Answering the official clients with given events, without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anthropic
import httpx2
import openai
from asking import CHAT, COMPLETIONS, MESSAGES
from pydantic import BaseModel

from ds4trio.server import sse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent
    from ds4trio.protocols.wire import ResponseWriter, WireProtocol

PROTOCOLS: dict[str, WireProtocol] = {p.path: p for p in (CHAT, COMPLETIONS, MESSAGES)}


class Server(httpx2.BaseTransport):
    """Answers every request with the same events, a heartbeat before each."""

    def __init__(
        self, events: Iterable[GenerationEvent], *, last: Ds4TrioError | None = None
    ) -> None:
        self.events = list(events)
        self.last = last

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        protocol = PROTOCOLS[request.url.path]
        parsed = protocol.parse(request.read(), "served")
        if not parsed.stream:
            body = parsed.writer.whole(self.events)
            return httpx2.Response(200, headers={"content-type": "application/json"}, content=body)
        return httpx2.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=b"".join(self._stream(parsed.writer)),
        )

    def _stream(self, w: ResponseWriter) -> Iterable[bytes]:
        yield sse.encode(w.start())
        for event in self.events:
            yield sse.heartbeat(w.heartbeat())
            yield sse.encode(w.feed([event]))
        if self.last is not None:
            yield sse.encode(w.fail(self.last))


class Refusal(httpx2.BaseTransport):
    def __init__(self, error: Ds4TrioError) -> None:
        self.error = error

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        protocol = PROTOCOLS[request.url.path]
        return httpx2.Response(
            protocol.status(self.error), content=protocol.render_error(self.error)
        )


def openai_client(transport: httpx2.BaseTransport) -> openai.OpenAI:
    http = httpx2.Client(transport=transport)
    return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=http, max_retries=0)


def anthropic_client(transport: httpx2.BaseTransport) -> anthropic.Anthropic:
    http = httpx2.Client(transport=transport)
    return anthropic.Anthropic(api_key="k", base_url="http://test", http_client=http, max_retries=0)


def assert_exactly(model: BaseModel, sent: object, *, beside: frozenset[str] = frozenset()) -> None:
    """Every field that was sent is one that the official type knows, or one of ``beside``."""
    assert model.model_dump(mode="json", by_alias=True, exclude_unset=True) == sent
    assert set(unknown(model)) <= beside


def unknown(model: BaseModel) -> Iterable[str]:
    yield from model.model_extra or ()
    for value in dict(model).values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, BaseModel):
                yield from unknown(item)
