"""What clients hear while the model loads and when the engine dies, under ``ds4trio serve``."""

from __future__ import annotations

import json
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from dialects import DIALECTS
from launching import free_port
from serving import Client, headers, repeating, saying, until

from ds4trio.config import Settings
from ds4trio.errors import EngineFailed
from ds4trio.server.serve import serve_until_signal
from ds4trio.testing import END_ID, ScriptedModel, StepGate, open_scripted_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ds4trio.service import Service

HOST = "127.0.0.1"


async def connect(port: int) -> Client:
    """As soon as the server listens."""
    while True:
        try:
            return await Client.connect(HOST, port)
        except OSError:
            await trio.testing.wait_all_tasks_blocked(0.001)


async def status_of(port: int, method: str, path: str, fields: object = None) -> tuple[int, bool]:
    """And whether it says when to try again."""
    body = b"" if fields is None else json.dumps(fields).encode()
    async with await connect(port) as client:
        await client.request(method, path, body)
        head = await client.head()
        await client.rest()
        return head.status_code, "retry-after" in headers(head)


async def ready(port: int) -> None:
    while await status_of(port, "GET", "/ready") != (200, False):
        pass


async def test_while_the_model_loads() -> None:
    loaded = trio.Event()

    @asynccontextmanager
    async def open_service(settings: Settings) -> AsyncIterator[Service]:
        await loaded.wait()
        async with open_scripted_engine(ScriptedModel(saying("Hi", END_ID)), settings) as service:
            yield service

    port = free_port()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_until_signal, Settings(port=port), open_service)
        assert await status_of(port, "GET", "/health") == (200, False)
        assert await status_of(port, "GET", "/metrics") == (200, False)
        assert await status_of(port, "GET", "/ready") == (503, False)
        assert await status_of(port, "GET", "/v1/models") == (503, True)
        for dialect in DIALECTS:
            fields = dialect.fields("Hi", stream=True)
            assert await status_of(port, "POST", dialect.path, fields) == (503, True)
        loaded.set()
        await ready(port)
        for dialect in DIALECTS:
            fields = dialect.fields("Hi", stream=True)
            assert await status_of(port, "POST", dialect.path, fields) == (200, False)
        signal.raise_signal(signal.SIGTERM)


async def test_a_signal_while_the_model_loads() -> None:
    never = trio.Event()

    @asynccontextmanager
    async def open_service(_: Settings) -> AsyncIterator[Service]:
        await never.wait()
        async with open_scripted_engine(ScriptedModel()) as service:
            yield service

    port = free_port()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_until_signal, Settings(port=port), open_service)
        await status_of(port, "GET", "/health")
        signal.raise_signal(signal.SIGTERM)


async def test_the_engine_dies(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever waits is told so, and the server ends with the error, so that it can be restarted."""
    caplog.set_level("INFO")
    gate = StepGate()

    def script(token_ids: Sequence[int]) -> int:
        if gate.entered > 3:
            raise ZeroDivisionError("a bug in the model")
        return repeating(token_ids)

    @asynccontextmanager
    async def open_service(settings: Settings) -> AsyncIterator[Service]:
        model = ScriptedModel(script, gate=gate)
        async with open_scripted_engine(model, settings) as service:
            services.append(service)
            yield service

    services: list[Service] = []
    port = free_port()
    told: dict[tuple[str, bool], tuple[int, str]] = {}

    async def ask(client: Client, name: str, stream: bool) -> None:
        dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
        async with client:
            head = await client.head()
            body = await client.rest()
        said = dialect.last_error(body) if stream else json.loads(body)["error"]["message"]
        told[name, stream] = head.status_code, said

    async def ask_all() -> None:
        await ready(port)
        with gate.opened_at_exit():
            async with trio.open_nursery() as nursery:
                for dialect in DIALECTS:
                    for stream in (True, False):
                        client = await connect(port)
                        await client.post(dialect.path, dialect.fields("Hi", stream=stream))
                        nursery.start_soon(ask, client, dialect.name, stream)
                stats = services[0].engine.stats
                await until(lambda: stats.running + stats.waiting == 2 * len(DIALECTS))
                gate.open()

    async def serve_and_ask() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all)
            await serve_until_signal(Settings(port=port, max_running=16), open_service)

    with pytest.raises(BaseExceptionGroup) as caught:
        await serve_and_ask()
    matched, rest = caught.value.split(EngineFailed)
    assert matched is not None
    assert rest is None
    for (_, stream), (status, message) in told.items():
        assert status == (200 if stream else 500)
        assert "engine has failed" in message
    assert len(told) == 2 * len(DIALECTS)
    lines = [record for record in caplog.records if record.name == "ds4trio.request"]
    assert {line.__dict__["fields"]["outcome"] for line in lines} == {"failed"}
