"""Nothing on one connection ends the worker, or hurts another."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from connecting import (
    GET,
    Client,
    Receive,
    Recorder,
    Running,
    Scope,
    Send,
    chunk,
    echo,
    in_memory,
    post,
    read_body,
    respond,
    running,
    start_stream,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4trio.server.connection import ConnectionLimits, serve_connection

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable

ERRORS = [
    ValueError("app"),
    OSError("app"),
    trio.BrokenResourceError("app"),
    GeneratorExit(),
    ExceptionGroup("app", [ValueError(), ExceptionGroup("inner", [OSError()])]),
    BaseExceptionGroup("app", [GeneratorExit(), ValueError()]),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_an_error_before_the_start_is_500(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    async with in_memory(app) as client:
        await client.send(GET)
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (500, b"close")
        assert await client.rest() == b""
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.exc_info is not None


async def test_returning_without_an_answer_is_500() -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)

    async with in_memory(app) as client:
        await client.send(GET.replace(b"GET", b"HEAD"))
        assert (await client.answer("HEAD")).status == 500
        assert await client.rest() == b""


@pytest.mark.parametrize("error", [*ERRORS, None], ids=repr)
@pytest.mark.parametrize("framing", ["chunks", "length", "HTTP/1.0"])
async def test_an_error_after_the_start_truncates_so_that_it_shows(
    error: BaseException | None, framing: str
) -> None:
    """What was written arrives; the final chunk, or the rest, does not. Where only the FIN would
    end the response, a reset shows it."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"10")] if framing == "length" else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await chunk(send, b"data")
        if error is not None:
            raise error

    request = GET.replace(b"1.1", b"1.0") if framing == "HTTP/1.0" else GET
    async with running(app) as server:
        client = await server.connect()
        await client.send(request)
        await client.until(b"\r\n\r\n")
        if framing == "HTTP/1.0":
            await server.all_ended()
            with pytest.raises(trio.BrokenResourceError):
                await client.rest()
        else:
            assert await client.rest() == {"chunks": b"4\r\ndata\r\n", "length": b"data"}[framing]
        await client.fin()


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("grouped", [False, True])
async def test_what_ends_the_process_passes(
    ending: type[BaseException], grouped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        if grouped:
            raise BaseExceptionGroup("app", [ValueError(), ending()])
        raise ending

    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(GET)
    with pytest.raises(BaseExceptionGroup) as caught:
        await serve_connection(
            app, theirs, limits=ConnectionLimits(), state={}, draining=trio.Event()
        )
    only, rest = caught.value.split(ending)
    assert only is not None
    assert rest is None
    assert len(caplog.records) == int(grouped)


async def test_a_client_that_leaves_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            while True:
                await chunk(send, b"x")

    async with in_memory(app) as client:
        await client.send(GET)
        await client.until(b"\r\n\r\n")
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []


# A victim beside the mischief


@asynccontextmanager
async def beside_a_victim() -> AsyncIterator[Running]:
    """The victim's stream must go on, undisturbed, to its very end."""
    over = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/victim":
            return await echo(scope, receive, send)
        await start_stream(send)
        await chunk(send, b"event\n")
        while not over.is_set():
            await chunk(send, b"event\n")
            await trio.lowlevel.checkpoint()
        await send({"type": "http.response.body"})

    async with running(app, ConnectionLimits(header_bytes=2000, linger_s=0.05)) as server:
        victim = await server.connect()
        await victim.send(GET.replace(b" / ", b" /victim "))
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                body = (await victim.answer()).body
                assert body
                assert body == b"event\n" * (len(body) // 6)

            nursery.start_soon(read)
            yield server
            over.set()
        await victim.fin()


#: Pieces of HTTP, whole and broken, that hypothesis strings together.
PIECES = [
    GET,
    post(b"body"),
    post(b"body")[:-2],
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"4\r\nbody\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffffffff\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\x00",
    b"HEAD / HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: ?\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /?\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"Expect: 100-continue\r\n",
    b"Content-Length: 99999999999999999999\r\n\r\n",
    b"GET / HTTP/1.1\r\n",
    b"X: " + b"y" * 3000,
]
mischief = st.lists(st.sampled_from(PIECES) | st.binary(max_size=40), max_size=8)


async def misbehave(server: Running, wires: list[list[bytes]], rst: bool) -> None:
    for wire in wires:
        client = await server.connect()
        with suppress(trio.BrokenResourceError):
            for piece in wire:
                await client.send(piece)
                await trio.lowlevel.checkpoint()
        if rst:
            await client.rst()
        else:
            await client.fin()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(wires=st.lists(mischief, min_size=1, max_size=5), rst=st.booleans())
def test_any_bytes_leave_the_neighbour_alone(wires: list[list[bytes]], rst: bool) -> None:
    async def main() -> None:
        async with beside_a_victim() as server:
            await misbehave(server, wires, rst)

    trio.run(main)


@settings(max_examples=200)
@given(wire=mischief, cuts=st.randoms(use_true_random=False))
def test_any_bytes_get_answers_or_an_end(wire: list[bytes], cuts: random.Random) -> None:
    """Whatever comes, in whatever pieces: well-formed answers, then the end."""
    data = b"".join(wire)

    async def main() -> None:
        limits = ConnectionLimits(header_bytes=2000, linger_s=1)
        async with in_memory(echo, limits) as client, trio.open_nursery() as nursery:

            async def talk() -> None:
                at = 0
                with suppress(trio.BrokenResourceError):
                    while at < len(data):
                        step = cuts.randint(1, 200)
                        await client.send(data[at : at + step])
                        at += step
                    await client.half_close()

            nursery.start_soon(talk)
            wire = await client.rest()
            assert wire == b"" or wire.startswith(b"HTTP/1.1 ")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_running_out_of_descriptors_spares_the_others() -> None:
    """No connection needs a descriptor beside its own, so those that are open go on."""
    import resource

    async with beside_a_victim() as server:
        neighbour = await server.connect()
        await neighbour.send(GET)
        await neighbour.answer()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            for _ in range(20):
                await neighbour.send(post(b"still here"))
                assert (await neighbour.answer("POST")).body == b"still here"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await neighbour.fin()


# Cancellation at every checkpoint


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope at the n-th step of any task but the one that made it."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self.left = step
        self.scope = scope
        self.outsider = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self.outsider:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def small_life(client: Client) -> None:
    """Two requests on one connection, one with a body in pieces, and an end."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError, AssertionError):
        wire = post(b"body" * 100, b"Expect: 100-continue") + GET
        for at in range(0, len(wire), 100):
            await client.send(wire[at : at + 100])
        await client.rest()


async def whole(_scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"x" * 1000)


async def stream_of_three(_scope: Scope, receive: Receive, send: Send) -> None:
    await start_stream(send)
    for _ in range(3):
        await chunk(send, b"event")
        await trio.lowlevel.checkpoint()
    await send({"type": "http.response.body"})


@pytest.mark.parametrize("act", [whole, stream_of_three], ids=lambda act: act.__name__)
def test_cancelled_at_every_checkpoint(
    act: Callable[[Scope, Receive, Send], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """No leak, no hang, nothing but Cancelled; and the client sees an end."""

    async def cancelled_at(step: int) -> bool:
        baseline = trio.lowlevel.current_statistics().tasks_living
        ours, theirs = trio.testing.lockstep_stream_pair()
        app = Recorder(act)
        serve = partial(
            serve_connection,
            app,
            theirs,
            limits=ConnectionLimits(keep_alive_s=1, linger_s=1),
            state={},
            draining=trio.Event(),
        )
        async with trio.open_nursery() as clients:
            clients.start_soon(small_life, Client(ours))
            with trio.CancelScope() as scope:
                instrument = CancelAtStep(step, scope)
                trio.lowlevel.add_instrument(instrument)
                await serve()
            trio.lowlevel.remove_instrument(instrument)
        assert trio.lowlevel.current_statistics().tasks_living == baseline
        return instrument.left > 0

    step = 1
    while not trio.run(cancelled_at, step, clock=trio.testing.MockClock(autojump_threshold=0.001)):
        step += 1
    assert step > 20
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []
