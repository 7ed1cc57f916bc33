"""What a client may cost: time (on a virtual clock), bytes, connections; and early refusals."""

from __future__ import annotations

from functools import partial
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
    echo,
    in_memory,
    post,
    read_body,
    respond,
    running,
    start_stream,
)

from ds4trio.server.connection import (
    ConnectionLimits,
    ConnectionLost,
    ConnectionStalled,
    serve_connection,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

MIB = 1 << 20


async def silent(_scope: Scope, receive: Receive, send: Send) -> None:
    await trio.sleep_forever()


# Time


async def test_idle_connections_are_closed_without_a_word(autojump_clock: MockClock) -> None:
    async with in_memory(echo, ConnectionLimits(keep_alive_s=75)) as client:
        assert await client.rest() == b""
        assert trio.current_time() == 75
    async with in_memory(echo, ConnectionLimits(keep_alive_s=75)) as client:
        await trio.sleep(74)
        await client.send(GET)
        await client.answer()
        answered = trio.current_time()
        assert await client.rest() == b""
        assert trio.current_time() - answered == 75


async def test_empty_lines_do_not_keep_a_connection_open(autojump_clock: MockClock) -> None:
    async with in_memory(echo, ConnectionLimits(keep_alive_s=75)) as client:
        await trio.sleep(70)
        await client.send(b"\r\n")
        await client.rest()
        assert trio.current_time() == 75


async def test_slow_headers_count_from_their_first_byte(autojump_clock: MockClock) -> None:
    async with in_memory(echo, ConnectionLimits(header_s=10)) as client:
        await trio.sleep(50)
        for byte in GET[:5]:
            await client.send(bytes([byte]))
            await trio.sleep(2)
        assert (await client.answer()).status == 408
        assert trio.current_time() == 60


async def test_a_client_may_think_for_long_while_it_is_answered(autojump_clock: MockClock) -> None:
    """Waiting is not idling: no read deadline runs while a request does."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(80_000)
        await respond(send)

    async with in_memory(app) as client:
        await client.send(GET)
        assert (await client.answer()).status == 200


async def test_a_body_that_stops_is_408(autojump_clock: MockClock) -> None:
    seen: list[object] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            pass
        seen.append(message["reason"])

    async with in_memory(app, ConnectionLimits(body_idle_s=30)) as client:
        await client.send(post(b"12345")[:-1])
        assert (await client.answer()).status == 408
        assert trio.current_time() == 30
    assert seen == ["closed"]


async def test_a_body_that_drips_is_408(autojump_clock: MockClock) -> None:
    limits = ConnectionLimits(body_idle_s=30, min_body_bytes_per_s=100)

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "http.request":
            pass

    async with in_memory(app, limits) as client:
        await client.send(post(bytes(100_000))[:-100_000])
        with trio.CancelScope() as dripping:
            async with trio.open_nursery() as nursery:

                async def drip() -> None:
                    while True:
                        await trio.sleep(1)
                        await client.send(bytes(50))

                nursery.start_soon(drip)
                assert (await client.answer()).status == 408
                dripping.cancel()
        # 50 bytes earn half a second: 30 + t/2 = t.
        assert 58 <= trio.current_time() <= 62


async def test_a_body_that_is_just_fast_enough(autojump_clock: MockClock) -> None:
    limits = ConnectionLimits(body_idle_s=30, min_body_bytes_per_s=100)
    async with in_memory(echo, limits) as client:
        await client.send(post(bytes(30_000))[:-30_000])
        for _ in range(300):
            await trio.sleep(1)
            await client.send(bytes(100))
        assert (await client.answer("POST")).status == 200


async def test_a_client_that_waits_for_continue_is_not_slow(autojump_clock: MockClock) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(100)
        await respond(send, await read_body(receive))

    async with in_memory(app, ConnectionLimits(body_idle_s=30)) as client:
        await client.send(post(b"ok", b"Expect: 100-continue")[:-2])
        await client.until(b"\r\n\r\n")
        await trio.sleep(29)
        await client.send(b"ok")
        assert (await client.answer("POST")).body == b"ok"


# Bytes


async def test_bytes_behind_a_running_request_are_bounded() -> None:
    """Over the bound the connection closes; up to it the request runs on."""
    app = Recorder(silent)
    async with running(app, ConnectionLimits(pipelined_bytes=10_000)) as server:
        client = await server.connect()
        await client.send(GET + bytes(10_000))
        await app.begun.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert app.reasons == []
        await client.send(b"x")
        await app.left.wait()
        await client.fin()
    assert app.reasons == ["closed"]


async def test_who_has_the_answer_may_ask_again_at_length() -> None:
    """Also while the application, which has said all, has not returned yet."""
    returns, answered = trio.Event(), 0

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal answered
        body = await read_body(receive)
        await respond(send, str(len(body)).encode())
        answered += 1
        if answered == 1:
            await returns.wait()

    async with running(app, ConnectionLimits(pipelined_bytes=10_000)) as server:
        client = await server.connect()
        await client.send(GET)
        assert (await client.answer()).body == b"0"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, post(bytes(MIB)))
            await trio.testing.wait_all_tasks_blocked(0.01)
            returns.set()
        assert (await client.answer("POST")).body == str(MIB).encode()
        await client.fin()


async def test_an_unread_body_is_bounded_and_flows_when_it_is_read() -> None:
    reading = trio.Event()
    sizes: list[int] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await reading.wait()
        more = True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        await respond(send)

    async with running(app, ConnectionLimits(unread_body_bytes=100_000)) as server:
        client = await server.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, post(bytes(20 * MIB)))
            await trio.testing.wait_all_tasks_blocked(0.05)
            reading.set()
            assert (await client.answer("POST")).status == 200
        await client.fin()
    assert sum(sizes) == 20 * MIB
    assert max(sizes) < 100_000 + 64 * 1024


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("client_reads", ["first", "last"])
async def test_an_early_refusal_of_a_large_body_reaches_the_client(
    framing: str, client_reads: str
) -> None:
    """Neither a deadlock nor a leak nor a reset, also for a client that reads only at the end."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"too large", status=413)

    if framing == "length":
        wire = post(bytes(10 * MIB))
    else:
        wire = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire += (b"%x\r\n" % MIB + bytes(MIB) + b"\r\n") * 10 + b"0\r\n\r\n"
    for _ in range(20 if client_reads == "last" else 3):
        async with running(app) as server:
            client = await server.connect()
            async with trio.open_nursery() as nursery:
                if client_reads == "last":
                    await client.send(wire)
                else:
                    nursery.start_soon(client.send, wire)
                answer = await client.answer("POST")
            assert (answer.status, answer.body) == (413, b"too large")
            assert answer.headers[b"connection"] == b"close"
            assert await client.rest() == b""
            await client.fin()


async def test_a_small_unread_body_costs_no_connection() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, status=401)

    async with in_memory(app) as client:
        for _ in range(3):
            await client.send(post(b"unread"))
            assert (await client.answer("POST")).status == 401


async def test_lingering_is_bounded_in_time(autojump_clock: MockClock) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, status=413)

    async with in_memory(app, ConnectionLimits(linger_s=5)) as client:
        await client.send(post(bytes(10))[:-1])
        assert (await client.answer("POST")).status == 413
        with pytest.raises(trio.BrokenResourceError):
            await drip(client)
        assert 5 <= trio.current_time() <= 6


async def drip(client: Client) -> None:
    while True:
        await trio.sleep(1)
        await client.send(b"x")


async def test_lingering_is_bounded_in_bytes() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, status=413)

    async with running(app, ConnectionLimits(linger_bytes=MIB)) as server:
        client = await server.connect()
        with pytest.raises(trio.BrokenResourceError):
            await client.send(post(bytes(64 * MIB)))
        await client.fin()


# Connections


async def test_connections_are_bounded() -> None:
    limits = ConnectionLimits(max_connections=2)
    async with running(echo, limits) as server:
        clients = [await server.connect() for _ in range(5)]
        for client in clients[:2]:
            await client.send(GET)
            assert (await client.answer()).status == 200
        for client in clients[2:4]:
            assert (await client.answer()).status == 503
        assert await clients[4].rest() == b""
        for client in clients[1:]:
            await client.fin()
        while server.server.open_connections > 1:
            await trio.testing.wait_all_tasks_blocked()
        again = await server.connect()
        await again.send(GET)
        assert (await again.answer()).status == 200
        await again.fin()
        await clients[0].fin()


# Draining


async def test_draining_closes_idle_connections_and_lets_requests_finish() -> None:
    going = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/stream":
            await start_stream(send)
        await going.wait()
        if scope["path"] == "/stream":
            await send({"type": "http.response.body", "body": b"end"})
        else:
            await respond(send, b"end")

    async with running(app) as server:
        fresh, used, whole, stream = [await server.connect() for _ in range(4)]
        going.set()
        await used.send(GET)
        await used.answer()
        going = trio.Event()
        await whole.send(GET + GET)
        await stream.send(GET.replace(b" / ", b" /stream "))
        await trio.testing.wait_all_tasks_blocked()
        server.draining.set()
        assert await fresh.rest() == b""
        assert await used.rest() == b""
        going.set()
        answer = await whole.answer()
        assert (answer.body, answer.headers[b"connection"]) == (b"end", b"close")
        assert await whole.rest() == b""
        assert (await stream.answer()).body == b"end"
        assert await stream.rest() == b""
        late = await server.connect()
        assert await late.rest() == b""
        for client in (fresh, used, whole, stream, late):
            await client.fin()


# Readers that do not read


async def flood(caught: list[OSError], _scope: Scope, receive: Receive, send: Send) -> None:
    await start_stream(send)
    with pytest.raises(ConnectionLost) as error:
        await chunks(send, bytes(1000))
    caught.append(error.value)
    assert (await receive())["type"] == "http.disconnect"


@pytest.mark.parametrize("receive_buffer_bytes", [2048, None])
async def test_a_stalled_reader_is_cut(receive_buffer_bytes: int | None) -> None:
    caught: list[OSError] = []
    app = Recorder(partial(flood, caught))
    async with running(app, ConnectionLimits(write_stall_s=0.1)) as server:
        client = await server.connect(receive_buffer_bytes)
        await client.send(GET)
        await app.left.wait()
        await server.all_ended()
        await client.fin()
    assert app.reasons == ["stalled"]


async def test_stalled_is_what_send_says() -> None:
    caught: list[OSError] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        await flood(caught, scope, receive, send)
        with pytest.raises(ConnectionStalled):
            await chunk(send, b"x")

    async with running(app, ConnectionLimits(write_stall_s=0.1)) as server:
        client = await server.connect(2048)
        await client.send(GET)
        await server.all_ended()
        await client.fin()
    assert isinstance(caught[0], ConnectionStalled)


async def test_a_reader_that_drips_is_cut_and_a_slow_one_is_not(
    autojump_clock: MockClock,
) -> None:
    """Each piece is progress, so only the rate tells them apart."""
    limits = ConnectionLimits(write_stall_s=30, min_write_bytes_per_s=1000)
    reasons = []
    for pause_s in (25, 10):
        ours, theirs = trio.testing.lockstep_stream_pair()
        recorder = Recorder(partial(write_pieces, 20))
        await read_slowly(recorder, ours, theirs, limits, pause_s)
        reasons += recorder.reasons
    assert reasons == ["stalled", "finished"]


async def write_pieces(count: int, _scope: Scope, receive: Receive, send: Send) -> None:
    await start_stream(send)
    for _ in range(count):
        await chunk(send, bytes(15_000))
    await send({"type": "http.response.body"})


async def read_slowly(
    app: Recorder,
    ours: trio.abc.Stream,
    theirs: trio.abc.Stream,
    limits: ConnectionLimits,
    pause_s: float,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(serve_connection, limits=limits, state={}, draining=trio.Event()), app, theirs
        )
        await ours.send_all(GET)
        with trio.CancelScope() as reading:
            nursery.start_soon(cancel_when, app.left, reading)
            while await ours.receive_some():  # noqa: ASYNC110 - it is the reader that is slow
                await trio.sleep(pause_s)
        await ours.aclose()


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
