from __future__ import annotations

from ds4trio.protocols.wire import WireEvent
from ds4trio.server import sse


def test_events_are_lines_ended_by_an_empty_one() -> None:
    # As the examples of the standard are written.
    assert sse.encode([WireEvent(b'{"a":1}')]) == b'data: {"a":1}\n\n'
    assert sse.encode([WireEvent(b"{}", name="ping")]) == b"event: ping\ndata: {}\n\n"


def test_events_are_joined() -> None:
    events = [WireEvent(b"1"), WireEvent(b"2", name="n"), WireEvent(b"[DONE]")]
    assert sse.encode(events) == b"data: 1\n\nevent: n\ndata: 2\n\ndata: [DONE]\n\n"
    assert sse.encode([]) == b""


def test_a_heartbeat_without_words_is_a_comment() -> None:
    comment = sse.heartbeat(None)
    assert comment.startswith(b":")
    assert comment.endswith(b"\n\n")
    assert comment.count(b"\n") == 2
    assert sse.heartbeat(WireEvent(b"{}", name="ping")) == b"event: ping\ndata: {}\n\n"
