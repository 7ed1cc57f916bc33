"""Headers of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ds4trio.errors import Ds4TrioError

Headers: TypeAlias = "list[tuple[bytes, bytes]]"

SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would otherwise hold the stream back, and with it the news that the client has left.
    (b"x-accel-buffering", b"no"),
]


def id_headers(request_id: str) -> Headers:
    """The request's name, under OpenAI's header and under Anthropic's: SDKs report either."""
    name = request_id.encode("ascii")
    return [(b"x-request-id", name), (b"request-id", name)]


def retry_after(error: Ds4TrioError) -> Headers:
    """The ``retry-after`` header of an answer to which trying again makes sense."""
    return [] if error.retry_after_s is None else [(b"retry-after", b"%d" % error.retry_after_s)]
