"""A client that leaves is known to have left, at once, whatever lies before its end in the pipe.

Real sockets, because FIN and RST are the kernel's words. Each case runs twenty times.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
from connecting import (
    GET,
    Client,
    Receive,
    Recorder,
    Scope,
    Send,
    chunk,
    chunks,
    in_memory,
    post,
    respond,
    running,
    start_stream,
)

from ds4trio.server.connection import ConnectionLimits, ConnectionLost, ConnectionStalled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TIMES = 20
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def silent(_scope: Scope, receive: Receive, send: Send) -> None:
    """Computes, and has written nothing yet."""
    await trio.sleep_forever()


async def streaming(_scope: Scope, receive: Receive, send: Send) -> None:
    await start_stream(send)
    while True:
        await chunk(send, b"data: x\n\n")
        await trio.sleep(0.001)


async def between_events(_scope: Scope, receive: Receive, send: Send) -> None:
    await start_stream(send)
    await trio.sleep_forever()


async def blocked(_scope: Scope, receive: Receive, send: Send) -> None:
    """In a write that the client does not take."""
    await start_stream(send)
    while True:
        await chunk(send, bytes(1 << 20))


PHASES = [silent, streaming, between_events, blocked]

#: What the client has sent when it leaves.
SENT = {
    "nothing more": GET,
    "a stray CRLF": post(b"body") + b"\r\n",
    "half a request": GET + GET[:20],
    "a request": GET + GET.replace(b" / ", b" /second "),
    "a whole pipeline": GET * 50,
}


async def fin(client: Client) -> None:
    await client.fin()


async def rst(client: Client) -> None:
    await client.rst()


async def half_close(client: Client) -> None:
    await client.half_close()


@pytest.mark.parametrize("leave", [fin, rst, half_close], ids=lambda way: way.__name__)
@pytest.mark.parametrize("sent", SENT)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
async def test_leaving(
    phase: Callable[[Scope, Receive, Send], Awaitable[None]],
    sent: str,
    leave: Callable[[Client], Awaitable[None]],
) -> None:
    for _ in range(TIMES):
        app = Recorder(phase)
        async with running(app) as server:
            client = await server.connect(receive_buffer_bytes=4096)
            await client.send(SENT[sent])
            await app.begun.wait()
            if phase is not silent:
                await client.until(b"\r\n\r\n")
            await leave(client)
            await app.left.wait()
            await server.all_ended()
            await client.fin()
        assert app.reasons == ["closed"]
        assert app.paths == ["/"]


@pytest.mark.parametrize("leave", [fin, rst], ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED,
        CHUNKED + b"5\r\nhel",
        post(b"12345")[:-2],
        post(b"")[:-2] + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    ],
    ids=["no chunk", "in a chunk", "half a body", "before 100"],
)
async def test_leaving_within_the_body(
    sent: bytes, leave: Callable[[Client], Awaitable[None]]
) -> None:
    for _ in range(TIMES):
        app = Recorder(silent)
        async with running(app) as server:
            client = await server.connect()
            await client.send(sent.replace(b"Content-Length: 0\r\n", b""))
            await app.begun.wait()
            await leave(client)
            await app.left.wait()
        assert app.reasons == ["closed"]


@pytest.mark.parametrize("leave", [fin, rst], ids=lambda way: way.__name__)
async def test_leaving_behind_a_body_that_nobody_reads(
    leave: Callable[[Client], Awaitable[None]],
) -> None:
    """More body than the connection takes in: the end is behind unread bytes in the kernel."""
    limits = ConnectionLimits(unread_body_bytes=1000)
    caught: list[OSError] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        began.set()
        with pytest.raises(ConnectionLost) as error:
            await chunks(send, b"x")
        caught.append(error.value)

    for _ in range(3):
        began = trio.Event()
        async with running(app, limits) as server:
            client = await server.connect()
            await client.send(post(bytes(150_000)))
            await began.wait()
            await leave(client)
            await server.all_ended()
    assert len(caught) == 3


async def test_receive_tells_of_the_end_before_the_body_that_is_left() -> None:
    seen: list[object] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await gone.wait()
        seen.extend([await receive(), await receive()])

    for _ in range(TIMES):
        gone = trio.Event()
        async with in_memory(app) as client:
            await client.send(post(b"body"))
            await trio.testing.wait_all_tasks_blocked()
            await client.fin()
            await trio.testing.wait_all_tasks_blocked()
            gone.set()
    assert seen == [{"type": "http.disconnect", "reason": "closed"}] * 2 * TIMES


async def test_a_blocked_write_is_told_of_the_end() -> None:
    """Without anybody in ``receive``, and though the kernel still says no."""
    caught: list[OSError] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        with pytest.raises(ConnectionLost) as error:
            await chunks(send, bytes(1 << 20))
        caught.append(error.value)

    for _ in range(TIMES):
        async with running(app) as server:
            client = await server.connect(receive_buffer_bytes=4096)
            await client.send(GET)
            await client.until(b"\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
            await client.half_close()
            await server.all_ended()
            await client.fin()
    assert len(caught) == TIMES


async def test_send_raises_for_ever_after_the_end() -> None:
    caught: list[bool] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        for _ in range(3):
            with pytest.raises(ConnectionLost) as error:
                await chunk(send, b"x")
            caught.append(isinstance(error.value, ConnectionStalled))

    async with in_memory(app) as client:
        await client.send(GET)
        await client.until(b"\r\n\r\n")
    assert caught == [False] * 3


async def test_a_client_that_leaves_after_a_complete_response_is_no_loss() -> None:
    """It has what it asked for: the application sees "finished", and is not hurried."""
    seen: list[str] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"all")
        await gone.wait()
        seen.append((await receive())["reason"])

    for _ in range(TIMES):
        gone = trio.Event()
        async with running(app) as server:
            client = await server.connect()
            await client.send(GET)
            await client.answer()
            await client.fin()
            await trio.testing.wait_all_tasks_blocked()
            gone.set()
    assert seen == ["finished"] * TIMES


async def test_an_application_that_does_not_leave_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        times.append(trio.current_time())
        try:
            await trio.sleep_forever()
        finally:
            times.append(trio.current_time())

    async with in_memory(app, ConnectionLimits(disconnect_grace_s=5)) as client:
        await client.send(GET)
        await trio.testing.wait_all_tasks_blocked()
    assert times[1] - times[0] == 5


async def test_an_application_that_ignores_a_broken_body_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with in_memory(silent, ConnectionLimits(disconnect_grace_s=5)) as client:
        await client.send(CHUNKED + b"not a size\r\n")
        await client.send(bytes(200_000))
        assert (await client.answer()).status == 400
        assert trio.current_time() == 5


# half_close = respond

RESPOND = ConnectionLimits(half_close="respond")


@pytest.mark.parametrize("sent", SENT)
async def test_half_close_respond_answers_all_that_was_asked(sent: str) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await going.wait()
        await respond(send, b"answer")

    for _ in range(TIMES):
        going = trio.Event()
        async with running(app, RESPOND) as server:
            client = await server.connect()
            await client.send(SENT[sent])
            await client.half_close()
            await trio.testing.wait_all_tasks_blocked()
            going.set()
            for _ in range(SENT[sent].count(b"\r\n\r\n")):
                assert (await client.answer()).body == b"answer"
            assert await client.rest() == b""
            await client.fin()


async def test_half_close_respond_still_sees_a_client_that_closes() -> None:
    """Through the reset with which it answers the response's next bytes."""
    app = Recorder(streaming)
    async with running(app, RESPOND) as server:
        client = await server.connect()
        await client.send(GET)
        await client.half_close()
        await client.until(b"data: x\n\n")
        await client.fin()
        await app.left.wait()
    assert app.reasons == ["closed"]


async def test_half_close_respond_sees_a_reset_in_silence() -> None:
    app = Recorder(silent)
    async with running(app, RESPOND) as server:
        client = await server.connect()
        await client.send(GET)
        await client.half_close()
        await app.begun.wait()
        await client.rst()
        await app.left.wait()
    assert app.reasons == ["closed"]


async def test_half_close_respond_needs_a_whole_request() -> None:
    app = Recorder(silent)
    async with running(app, RESPOND) as server:
        client = await server.connect()
        await client.send(post(b"12345")[:-1])
        await app.begun.wait()
        await client.half_close()
        await app.left.wait()
        await client.fin()
    assert app.reasons == ["closed"]


# TLS

trustme = pytest.importorskip("trustme")


@pytest.fixture(scope="module")
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


async def over_tls(client: Client, context: ssl.SSLContext) -> Client:
    stream = trio.SSLStream(
        client.stream, context, server_hostname="localhost", https_compatible=True
    )
    await stream.do_handshake()
    return Client(stream)


async def close_notify(secure: Client, plain: Client) -> None:
    """TLS's own end, with TCP still open."""
    stream = secure.stream
    assert isinstance(stream, trio.SSLStream)
    with trio.move_on_after(0.01), suppress(trio.BrokenResourceError):
        await stream.unwrap()


async def bare_fin(secure: Client, plain: Client) -> None:
    await plain.fin()


async def bare_rst(secure: Client, plain: Client) -> None:
    await plain.rst()


@pytest.mark.parametrize("leave", [close_notify, bare_fin, bare_rst], ids=lambda way: way.__name__)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
async def test_leaving_over_tls(
    phase: Callable[[Scope, Receive, Send], Awaitable[None]],
    leave: Callable[[Client, Client], Awaitable[None]],
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    for _ in range(3):
        app = Recorder(phase)
        async with running(app, tls=tls[0]) as server:
            plain = await server.connect(receive_buffer_bytes=4096)
            secure = await over_tls(plain, tls[1])
            await secure.send(GET)
            await app.begun.wait()
            await leave(secure, plain)
            await app.left.wait()
            await server.all_ended()
            await plain.fin()
        assert app.reasons == ["closed"]


async def test_requests_over_tls(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, scope["scheme"].encode() + bytes(100_000))

    async with running(app, tls=tls[0]) as server:
        secure = await over_tls(await server.connect(), tls[1])
        for _ in range(2):
            await secure.send(GET)
            assert (await secure.answer()).body == b"https" + bytes(100_000)
        await secure.fin()


async def test_no_tls_hello() -> None:
    """Plain HTTP to a TLS port, and a client that says nothing, end before any request."""
    limits = ConnectionLimits(tls_handshake_s=0.05)
    app = Recorder(silent)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    async with running(app, limits, tls=server_side) as server:
        shouting, silent_one = await server.connect(), await server.connect()
        await shouting.send(GET)
        await server.all_ended()
        await shouting.fin()
        await silent_one.fin()
    assert app.paths == []
