"""HTTP/1.1 as clients see it, and ASGI as applications see it."""

from __future__ import annotations

import itertools
from typing import Any

import h11
import pytest
import trio
from connecting import (
    GET,
    Receive,
    Scope,
    Send,
    chunk,
    chunks,
    echo,
    in_memory,
    post,
    read_body,
    respond,
    running,
    start_stream,
)

from ds4trio.server.connection import ConnectionLimits


async def test_get() -> None:
    async with in_memory(echo) as client:
        await client.send(GET)
        answer = await client.answer()
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers[b"date"].endswith(b" GMT")
    assert b"connection" not in answer.headers


@pytest.mark.parametrize("size", [0, 1, 65536, 1_000_000])
async def test_post_with_a_length(size: int) -> None:
    body = bytes(itertools.islice(itertools.cycle(range(256)), size))
    async with running(echo) as server:
        client = await server.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, post(body))
            assert (await client.answer()).body == body
        await client.fin()


async def test_post_in_chunks_one_byte_at_a_time() -> None:
    wire = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;note=1\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
    )
    async with in_memory(echo) as client:
        for byte in wire:
            await client.send(bytes([byte]))
        assert (await client.answer()).body == b"hello world"


async def test_the_body_comes_as_it_arrives() -> None:
    seen: list[tuple[bytes, bool]] = []
    steps = [trio.Event() for _ in range(3)]

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        for step in steps:
            message = await receive()
            seen.append((message["body"], message["more_body"]))
            step.set()
        await respond(send)

    async with in_memory(app) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nab")
        await steps[0].wait()
        await client.send(b"cd")
        await steps[1].wait()
        await client.send(b"ef")
        assert (await client.answer()).status == 200
    assert seen == [(b"ab", True), (b"cd", True), (b"ef", False)]


async def test_keep_alive() -> None:
    async with in_memory(echo) as client:
        for body in (b"one", b"", b"three"):
            await client.send(post(body))
            assert (await client.answer("POST")).body == body


@pytest.mark.parametrize("between", [b"", b"\r\n", b"\r\n\r\n"])
async def test_pipelined_requests_are_answered_in_order_one_by_one(between: bytes) -> None:
    live = 0

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal live
        live += 1
        assert live == 1
        body = await read_body(receive)
        await trio.testing.wait_all_tasks_blocked()
        await respond(send, body)
        live -= 1

    bodies = [b"a", b"bb", b"", b"dddd"]
    async with in_memory(app) as client:
        await client.send(between.join(post(body) for body in bodies))
        for body in bodies:
            assert (await client.answer("POST")).body == body


async def test_a_pipelined_request_waits_until_the_application_has_returned() -> None:
    going = trio.Event()
    order: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        order.append(scope["path"])
        await respond(send)
        if scope["path"] == "/1":
            await going.wait()
        order.append(scope["path"])

    async with in_memory(app) as client:
        await client.send(GET.replace(b" / ", b" /1 ") + GET.replace(b" / ", b" /2 "))
        await client.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["/1"]
        going.set()
        await client.answer()
    assert order == ["/1", "/1", "/2", "/2"]


async def test_head_has_the_headers_and_no_body() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"12345")

    async with in_memory(app) as client:
        for _ in range(2):
            await client.send(GET.replace(b"GET", b"HEAD"))
            answer = await client.answer("HEAD")
            assert (answer.headers[b"content-length"], answer.body) == (b"5", b"")


@pytest.mark.parametrize("status", [204, 304])
async def test_a_response_that_has_no_body_gets_none(status: int) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"surplus"})

    async with in_memory(app) as client:
        for _ in range(2):
            await client.send(GET)
            assert (await client.answer()).status == status


async def test_http_1_0_is_answered_without_chunks_and_closed() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        await chunk(send, b"data")
        await send({"type": "http.response.body", "body": b"!"})

    async with in_memory(app) as client:
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert body == b"data!"
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head.lower()


@pytest.mark.parametrize("asker", ["client", "application"])
async def test_connection_close(asker: str) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        extra = [(b"connection", b"close")] if asker == "application" else []
        await respond(send, b"x", 200, *extra)

    extra = b"Connection: close\r\n" if asker == "client" else b""
    async with in_memory(app) as client:
        await client.send(GET.replace(b"\r\n\r\n", b"\r\n" + extra + b"\r\n"))
        answer = await client.answer()
        assert answer.headers[b"connection"] == b"close"
        assert await client.rest() == b""


# 100-continue


EXPECT = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 \r\n\r\n"


async def test_continue_is_said_when_the_application_wants_the_body_and_no_sooner() -> None:
    reading = trio.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await reading.wait()
        await respond(send, await read_body(receive))

    async with in_memory(app) as client:
        await client.send(EXPECT)
        with trio.CancelScope() as early:
            async with trio.open_nursery() as nursery:

                async def listen() -> None:
                    assert await client.read(1) == b"never"

                nursery.start_soon(listen)
                await trio.testing.wait_all_tasks_blocked()
                early.cancel()
        reading.set()
        assert await client.read(len(CONTINUE)) == CONTINUE
        await client.send(b"ok")
        assert (await client.answer()).body == b"ok"


async def test_a_refusal_is_said_instead_of_continue() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, status=401)

    async with in_memory(app) as client:
        await client.send(EXPECT)
        wire = await client.rest()
    assert wire.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in wire


async def test_a_body_that_did_not_wait_needs_no_continue() -> None:
    async with in_memory(echo) as client:
        await client.send(EXPECT + b"ok")
        assert (await client.until(b"\r\n")).startswith(b"HTTP/1.1 200")


# The scope


async def scope_of(head: bytes) -> Scope:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await respond(send)

    async with running(app) as server:
        client = await server.connect()
        await client.send(head + b"\r\nHost: test\r\nX-Two: 1\r\nx-two: 2\r\n\r\n")
        await client.answer()
        await client.fin()
        scopes[0]["port"] = server.port
    return scopes[0]


async def test_scope() -> None:
    scope = await scope_of(b"GET /v1/caf%C3%A9%20x?beta=true&q=%20 HTTP/1.1")
    assert scope["type"] == "http"
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.4"}
    assert (scope["http_version"], scope["method"], scope["scheme"]) == ("1.1", "GET", "http")
    assert scope["path"] == "/v1/café x"
    assert scope["raw_path"] == b"/v1/caf%C3%A9%20x"
    assert scope["query_string"] == b"beta=true&q=%20"
    assert scope["headers"] == [(b"host", b"test"), (b"x-two", b"1"), (b"x-two", b"2")]
    assert scope["client"][0] == "127.0.0.1"
    assert scope["server"] == ("127.0.0.1", scope["port"])
    assert scope["state"] == {"of": "lifespan"}


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"http://host/p?q=1", "/p", b"q=1"),
        (b"HTTPS://host", "/", b""),
        (b"http://host?q", "/", b"q"),
        (b"//host/p", "//host/p", b""),
        (b"*", "*", b""),
        (b"/%ff%fe", "/\ufffd\ufffd", b""),
        (b"/a://b", "/a://b", b""),
    ],
)
async def test_targets(target: bytes, path: str, query: bytes) -> None:
    scope = await scope_of(b"OPTIONS " + target + b" HTTP/1.1")
    assert (scope["path"], scope["query_string"]) == (path, query)


async def test_any_method_is_the_applications_to_judge() -> None:
    assert (await scope_of(b"B!REW / HTTP/1.1"))["method"] == "B!REW"


async def test_an_upgrade_is_ignored() -> None:
    head = b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: !"
    assert (await scope_of(head))["method"] == "GET"


# What is no request


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505),
        (b"CONNECT host:80 HTTP/1.1\r\nHost: host\r\n\r\n", 501),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"G\xc3\x89T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            400,
        ),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000, 431),
    ],
)
async def test_refusals(wire: bytes, status: int) -> None:
    async def app(*_: object) -> None:
        raise AssertionError

    async with running(app) as server:
        client = await server.connect()
        await client.send(wire)
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (status, b"close")
        assert await client.rest() == b""
        await client.fin()


async def test_headers_just_within_the_limit() -> None:
    limits = ConnectionLimits(header_bytes=1000)
    head = b"GET / HTTP/1.1\r\nHost: test\r\nX: "
    async with in_memory(echo, limits) as client:
        await client.send(head + b"y" * (996 - len(head)) + b"\r\n\r\n")
        assert (await client.answer()).status == 200
        await client.send(head + b"y" * 1000)
        assert (await client.answer()).status == 431


async def test_a_bad_chunk_is_a_disconnect_for_the_application_and_400_for_the_client() -> None:
    seen: list[object] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            pass
        seen.append(message)

    async with in_memory(app) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert (await client.answer()).status == 400
    assert seen == [{"type": "http.disconnect", "reason": "closed"}]


async def test_a_bad_chunk_behind_a_started_response_ends_it() -> None:
    seen: list[str] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        with pytest.raises(OSError, match="gone"):
            await chunks(send, b"x")
        seen.append("over")

    async with running(app) as server:
        client = await server.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await client.until(b"\r\n\r\n")
        await client.send(b"zz\r\n")
        await server.all_ended()
        await client.fin()
    assert seen == ["over"]


# The application's side


async def test_finished_is_not_gone() -> None:
    seen: list[object] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send)
        seen.extend([await receive(), await receive()])

    async with in_memory(app) as client:
        await client.send(GET)
        await client.answer()
        await client.send(GET)
        await client.answer()
    assert seen == [{"type": "http.disconnect", "reason": "finished"}] * 4


async def test_the_head_waits_for_the_first_body_message() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("too late for 200, had it been sent")

    async with in_memory(app) as client:
        await client.send(GET)
        assert (await client.answer()).status == 500


@pytest.mark.parametrize("wrong", ["no start", "two starts", "after the end", "nonsense"])
async def test_messages_that_are_not_due(wrong: str) -> None:
    start: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
    body: dict[str, Any] = {"type": "http.response.body"}
    messages = {
        "no start": [body],
        "two starts": [start, start],
        "after the end": [start, body, body],
        "nonsense": [{"type": "http.response.push"}],
    }[wrong]
    caught: list[str] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages[:-1]:
            await send(message)
        with pytest.raises(RuntimeError, match="is not due"):
            await send(messages[-1])
        caught.append(wrong)

    async with in_memory(app) as client:
        await client.send(GET)
        await client.answer()
    assert caught == [wrong]


async def test_a_response_longer_than_it_said_is_the_applications_error() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        head = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"1")],
        }
        await send(head)
        with pytest.raises(h11.LocalProtocolError):
            await send({"type": "http.response.body", "body": b"12"})

    async with in_memory(app) as client:
        await client.send(GET)
        assert (await client.answer()).status == 500


async def test_two_tasks_may_send() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        async with trio.open_nursery() as nursery:
            for letter in b"abcdefgh":
                nursery.start_soon(chunk, send, bytes([letter]) * 50_000)
        await send({"type": "http.response.body"})

    async with running(app) as server:
        client = await server.connect(receive_buffer_bytes=4096)
        await client.send(GET)
        body = (await client.answer()).body
        await client.fin()
    assert sorted(body[i : i + 50_000] for i in range(0, len(body), 50_000)) == [
        bytes([letter]) * 50_000 for letter in b"abcdefgh"
    ]
