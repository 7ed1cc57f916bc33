"""The end of a server, whatever its clients do: told in time, nothing left, exit code 0."""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import h11
import pytest
import trio
import trio.testing
from dialects import DIALECTS, Dialect, every_dialect
from launching import Launched, every_launch, launched
from matrix import request_lines
from serving import Client, Server, serving, until
from tiny_llama import write_tiny_llama

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

DRAIN_S = 1.0
ENDLESS = 90_000
#: What a busy machine may add to the second that is promised.
BUSY_S = 1.5


@dataclass(frozen=True, slots=True)
class Crowd:
    """One client of each kind, all of whom want more than the deadline allows."""

    stream: Client
    whole: Client
    queued_stream: Client
    queued_whole: Client
    idle: Client
    stalled: Client
    half: Client


@asynccontextmanager
async def crowd(server: Launched) -> AsyncIterator[Crowd]:
    """On a server of three places."""
    dialect, clients = DIALECTS[0], []

    async def ask(*, stream: bool, receive_buffer: int | None = None) -> Client:
        client = await Client.connect("127.0.0.1", server.port, receive_buffer=receive_buffer)
        clients.append(client)
        fields = dialect.fields("Hi", stream=stream, max_tokens=ENDLESS, ignore_eos=True)
        await client.post(dialect.path, fields)
        return client

    idle = await Client.connect("127.0.0.1", server.port)
    await idle.request("GET", "/health")
    await idle.response()
    clients.append(idle)
    half = await Client.connect("127.0.0.1", server.port)
    await half.begin("POST", dialect.path, 1000, {"content-type": "application/json"})
    clients.append(half)
    stalled = await ask(stream=True, receive_buffer=2048)
    async with await Client.connect("127.0.0.1", server.port) as watcher:
        await _until_stalled(watcher)
    stream = await ask(stream=True)
    await stream.head()
    await stream.read_until(lambda body: bool(dialect.text_so_far(body)))
    whole = await ask(stream=False)
    async with await Client.connect("127.0.0.1", server.port) as watcher:
        await _until_running(watcher, 3, 0)
        queued = await ask(stream=True), await ask(stream=False)
        found = Crowd(stream, whole, *queued, idle, stalled, half)
        await _until_running(watcher, 3, 2)
    yield found
    for client in clients:
        await client.stream.aclose()


async def _until_stalled(watcher: Client) -> None:
    """Until the only sequence there is does not advance any more."""
    name = b"ds4trio_generated_tokens_total "
    before, now = b"", b"0.0"
    while now != before or now == b"0.0":
        before = now
        await trio.sleep(0.5)
        await watcher.request("GET", "/metrics")
        _, body = await watcher.response()
        watcher.again()
        (now,) = [line.removeprefix(name) for line in body.splitlines() if line.startswith(name)]


async def _until_running(watcher: Client, running: int, waiting: int) -> None:
    wanted = (
        f'ds4trio_sequences{{state="running"}} {running}.0\n'
        f'ds4trio_sequences{{state="waiting"}} {waiting}.0\n'
    ).encode()
    body = b""
    while wanted not in body:
        await watcher.request("GET", "/metrics")
        _, body = await watcher.response()
        watcher.again()


def processes(parent: int) -> list[int]:
    """A process and its children, which is what a signal to its group reaches."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *(pid for child in children for pid in processes(int(child)))]


async def exit_time(server: Launched, *, group: bool) -> float:
    """Seconds from SIGTERM until the process has ended, with 0."""
    began = perf_counter()
    for pid in processes(server.process.pid) if group else [server.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert await server.process.wait() == 0, server.stderr.decode()
    return perf_counter() - began


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
@every_launch
async def test_sigterm_with_a_crowd(launch: str, group: bool, tmp_path: Path) -> None:
    """Everyone is told within the drain deadline, and the exit is in time: within the deadline
    and a second more than an exit takes with nobody there."""
    dialect = DIALECTS[0]
    model = write_tiny_llama(tmp_path / "tiny")
    settings: dict[str, object] = {"model": model, "max_running": 3, "drain_timeout_s": DRAIN_S}
    async with launched(launch, **settings) as server:
        alone_s = await exit_time(server, group=group)
    async with launched(launch, **settings) as server, crowd(server) as clients:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def stream() -> None:
                body = b'data: {"choices":[]}\n\n' + _last_events(await clients.stream.rest())
                assert "shutting down" in dialect.last_error(body)

            @nursery.start_soon
            async def queued_stream() -> None:
                await clients.queued_stream.head()
                assert "shutting down" in dialect.last_error(await clients.queued_stream.rest())

            @nursery.start_soon
            async def whole() -> None:
                for client in (clients.whole, clients.queued_whole):
                    status, _ = await client.response()
                    assert status == 503

            @nursery.start_soon
            async def idle() -> None:
                assert await clients.idle.stream.receive_some(100) == b""

            crowded_s = await exit_time(server, group=group)
        with pytest.raises((h11.RemoteProtocolError, trio.BrokenResourceError)):
            await clients.stalled.response()
    assert crowded_s - alone_s < DRAIN_S + 1 + BUSY_S
    assert b"Traceback" not in server.stderr
    assert server.stderr.count(b"outcome=shutdown") == 6


def _last_events(body: bytes) -> bytes:
    return b"\n\n".join(body.split(b"\n\n")[-3:])


# --- in one process, by a mock clock ---


async def begin(server: Server, dialect: Dialect, *, stream: bool, max_tokens: int) -> Client:
    client = await server.connect()
    await client.post(dialect.path, dialect.fields("Hi", stream=stream, max_tokens=max_tokens))
    return client


async def ready(server: Server) -> int:
    """What a load balancer hears."""
    async with await server.connect() as client:
        await client.request("GET", "/ready")
        return (await client.response())[0]


async def test_a_drained_server_closes_at_once(mock_clock: MockClock) -> None:
    """Long before the deadline: nothing runs any more."""
    async with serving(gated=True, drain_timeout_s=1000) as server:
        client = await begin(server, DIALECTS[0], stream=False, max_tokens=1)
        await server.gate.reached(1)
        assert await ready(server) == 200
        server.state.stopping.set()
        assert await ready(server) == 503
        server.gate.open()
        assert (await client.response())[0] == 200
        await until(server.state.drained.is_set)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="refused"):
            await server.connect()


@every_dialect
async def test_draining(mock_clock: MockClock, dialect: Dialect) -> None:
    """What can end does; what cannot is told so when the deadline has come; nothing new begins."""
    with request_lines() as lines:
        async with serving(gated=True, drain_timeout_s=10, heartbeat_s=1000) as server:
            short = await begin(server, dialect, stream=False, max_tokens=3)
            await server.gate.reached(1)
            long = await begin(server, dialect, stream=True, max_tokens=2000)
            whole = await begin(server, dialect, stream=False, max_tokens=2000)
            await until(lambda: server.engine.engine.stats.waiting == 2)
            kept = await begin(server, dialect, stream=False, max_tokens=0)
            await kept.response()
            server.state.stopping.set()
            late = await begin(server, dialect, stream=False, max_tokens=3)
            assert (await late.response())[0] == 503
            assert await ready(server) == 503
            server.gate.release(3)
            status, body = await short.response()
            assert (status, dialect.read(body, stream=False).text) == (200, "HiH")
            await server.gate.reached(4)
            mock_clock.jump(9.9)
            await trio.testing.wait_all_tasks_blocked()
            assert len(server.state.live) == 2
            mock_clock.jump(0.2)
            await trio.testing.wait_all_tasks_blocked()
            server.gate.open()
            await long.head()
            assert "shutting down" in dialect.last_error(await long.rest())
            assert (await whole.response())[0] == 503
            await server.idle()
            assert len(server.model.forwards) == 4
            assert not server.model.live_states
    assert sorted(line["outcome"] for line in lines.requests) == [
        "completed",
        "rejected",
        "rejected",
        "shutdown",
        "shutdown",
    ]
    assert not lines.complaints
