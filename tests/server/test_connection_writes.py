"""Writes: cancellable at any time, never continued after a cut, bounded, on any kind of stream."""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from connecting import (
    GET,
    Client,
    Receive,
    Scope,
    Send,
    chunk,
    echo,
    in_memory,
    post,
    respond,
    running,
    start_stream,
)

from ds4trio.server.connection import ConnectionLimits, ConnectionLost
from ds4trio.server.http_server import HttpServer

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_write_cancelled_before_its_first_byte_leaves_the_response_whole() -> None:
    """So a deadline can still be told to the client in the stream."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        for _ in range(40):
            with trio.CancelScope() as scope:
                scope.cancel()
                await chunk(send, b"never")
        await send({"type": "http.response.body", "body": b"the end"})

    async with in_memory(app) as client:
        await client.send(GET)
        assert (await client.answer()).body == b"the end"


async def test_nothing_is_written_after_a_write_that_was_cut_short() -> None:
    """All that the client gets is a prefix of what was meant, without the final chunk."""
    taken: list[bytes] = []
    caught: list[OSError] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        with trio.move_on_after(0.05) as scope:
            await chunk(send, bytes(64 << 20))
        assert scope.cancelled_caught
        for more in (True, False):
            with pytest.raises(ConnectionLost) as error:
                await send({"type": "http.response.body", "body": b"MORE", "more_body": more})
            caught.append(error.value)

    async with running(app) as server:
        client = await server.connect(receive_buffer_bytes=4096)
        await client.send(GET)
        taken.append(await client.until(b"\r\n\r\n"))
        await server.all_ended()
        with suppress(trio.BrokenResourceError):
            while True:
                taken.append(await client.read(1))
        await client.fin()
    size, body = b"".join(taken[1:]).split(b"\r\n", 1)
    assert int(size, 16) == 64 << 20
    assert len(body) < 64 << 20
    assert body.strip(b"\0") == b""
    assert len(caught) == 2


async def test_a_blocked_write_ends_with_the_server() -> None:
    """Shutdown passes straight through, whatever the client does."""
    began = trio.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        began.set()
        while True:
            await chunk(send, bytes(1 << 20))

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = HttpServer(app, limits=ConnectionLimits(), state={}, draining=trio.Event())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server, [listener])
        stream = await trio.testing.open_stream_to_socket_listener(listener)
        await stream.send_all(GET)
        await began.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert server.open_connections == 0
    await stream.aclose()


async def test_what_is_accepted_for_a_stalled_reader_is_bounded() -> None:
    accepted = 0

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal accepted
        await start_stream(send)
        while True:
            await chunk(send, bytes(1000))
            accepted += 1000

    async with running(app, ConnectionLimits(write_stall_s=0.1)) as server:
        client = await server.connect()
        await client.send(GET)
        await server.all_ended()
        await client.fin()
    assert 0 < accepted <= 1 << 20


async def test_a_slow_but_steady_reader_gets_everything() -> None:
    size = 3 << 20

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, bytes(size))

    async with running(app, ConnectionLimits(write_stall_s=2)) as server:
        client = await server.connect(receive_buffer_bytes=4096)
        await client.send(GET)
        assert len((await client.answer()).body) == size
        await client.fin()


async def test_a_stall_is_seen_on_any_stream(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    caught: list[float] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        with pytest.raises(ConnectionLost):
            await chunk(send, bytes(100_000))
        caught.append(trio.current_time())

    server = HttpServer(
        app, limits=ConnectionLimits(write_stall_s=30), state={}, draining=trio.Event()
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server, theirs)
        await ours.send_all(GET)
        await Client(ours).until(b"\r\n\r\n")
    assert caught == [30]


# Sockets


async def test_socket_options() -> None:
    """At the defaults a vanished peer is gone within 30 s: silent by keepalive, streaming by the
    user timeout, which also decides when keepalive gives up (tcp(7))."""
    async with running(echo) as server:
        client = await server.connect()
        await client.send(GET)
        await client.answer()
        (stream,) = server.accepted
        assert isinstance(stream, trio.SocketStream)
        option = partial(stream.socket.getsockopt, socket.IPPROTO_TCP)
        assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option(socket.TCP_NODELAY) == 1
        assert option(socket.TCP_USER_TIMEOUT) == 25_000
        idle_s, interval_s = option(socket.TCP_KEEPIDLE), option(socket.TCP_KEEPINTVL)
        assert (idle_s, interval_s, option(socket.TCP_KEEPCNT)) == (10, 5, 3)
        # The probe at which the user timeout has passed.
        assert 25 <= idle_s + 3 * interval_s <= 30
        await client.fin()


async def test_the_kernels_patience_is_the_stalls_while_a_write_is_blocked() -> None:
    limits = ConnectionLimits(write_stall_s=100, vanish_s=25)

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        await chunk(send, bytes(1 << 20))
        await send({"type": "http.response.body"})

    async with running(app, limits) as server:
        client = await server.connect(receive_buffer_bytes=4096)
        await client.send(GET)
        await client.until(b"\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.01)
        (stream,) = server.accepted
        assert isinstance(stream, trio.SocketStream)
        option = partial(stream.socket.getsockopt, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert option() == 125_000
        await client.until(b"\r\n")
        await client.read(1 << 20)
        await client.until(b"0\r\n\r\n")
        assert option() == 25_000
        await client.fin()


async def test_unix_sockets(tmp_path: Path) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await echo(scope, receive, send)

    path = str(tmp_path / "socket")
    sock = trio.socket.socket(socket.AF_UNIX)
    await sock.bind(path)
    sock.listen()
    server = HttpServer(app, limits=ConnectionLimits(), state={}, draining=trio.Event())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server, [trio.SocketListener(sock)])
        client = Client(await trio.open_unix_socket(path))
        for _ in range(2):
            await client.send(post(b"over a path"))
            assert (await client.answer("POST")).body == b"over a path"
        await client.fin()
        nursery.cancel_scope.cancel()
    assert (scopes[0]["client"], scopes[0]["server"]) == (None, None)


async def test_ipv6() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="::1")
    clients: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        clients.append(scope["client"][0])
        await respond(send)

    server = HttpServer(app, limits=ConnectionLimits(), state={}, draining=trio.Event())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server, [listener])
        client = Client(await trio.testing.open_stream_to_socket_listener(listener))
        await client.send(GET)
        assert (await client.answer()).status == 200
        await client.fin()
        nursery.cancel_scope.cancel()
    assert clients == ["::1"]
