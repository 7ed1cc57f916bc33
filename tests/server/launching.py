"""A server started by its command, in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from dialects import DIALECTS
from serving import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

every_launch = pytest.mark.parametrize("launch", ["ds4trio", "hypercorn", "hypercorn --workers 0"])


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def free_port() -> int:
    with taken_port() as port:
        return port


def command(
    launch: str, port: int, settings: dict[str, object]
) -> tuple[list[str], dict[str, str]]:
    """The command and its environment: settings go as flags, or as variables."""
    environ = {n: v for n, v in os.environ.items() if not n.startswith("DS4TRIO_")}
    if launch == "ds4trio":
        chosen = {"threads": 1, **settings, "port": port}
        flags = [f"--{n.replace('_', '-')}={v}" for n, v in chosen.items() if n != "model"]
        return [sys.executable, "-m", "ds4trio", "serve", str(chosen["model"]), *flags], environ
    chosen = {"threads": 1, **settings}
    environ |= {f"DS4TRIO_{name.upper()}": str(value) for name, value in chosen.items()}
    hypercorn, *flags = launch.split()
    bind = f"127.0.0.1:{port}"
    start = [sys.executable, "-m", hypercorn, "-k", "trio", "ds4trio.asgi:app", "--bind", bind]
    return [*start, *flags], environ


@dataclass
class Launched:
    process: trio.Process
    port: int
    stderr: bytes = b""
    clients: list[Client] = field(default_factory=list)

    def lines(self, what: bytes) -> list[bytes]:
        """The log lines that say it."""
        return [line for line in self.stderr.splitlines() if what in line]

    async def get(self, path: str) -> int:
        async with await Client.connect("127.0.0.1", self.port) as client:
            await client.request("GET", path)
            status, _ = await client.response()
            return status

    async def ready(self) -> None:
        while True:
            assert self.process.poll() is None, self.stderr.decode()
            try:
                if await self.get("/ready") == 200:
                    return
            except OSError:
                pass
            await trio.sleep(0.05)

    async def begin_stream(self, **extra: object) -> tuple[Client, bytes]:
        """A client that has its first text, and all that it has."""
        dialect = DIALECTS[0]
        client = await Client.connect("127.0.0.1", self.port)
        self.clients.append(client)
        await client.post(dialect.path, dialect.fields("Hi", stream=True, **extra))
        assert (await client.head()).status_code == 200
        said = await client.read_until(lambda body: bool(dialect.text_so_far(body)))
        return client, said


@asynccontextmanager
async def launched(launch: str, **settings: object) -> AsyncIterator[Launched]:
    """The server, ready; killed at the end if it has not ended by itself."""
    port = free_port()
    arguments, environ = command(launch, port, settings)
    async with trio.open_nursery() as nursery:
        start = partial(trio.lowlevel.open_process, arguments, env=environ)
        process = await start(
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        server = Launched(process, port)

        async def read() -> None:
            assert process.stderr is not None
            async for chunk in process.stderr:
                server.stderr += chunk

        nursery.start_soon(read)
        try:
            await server.ready()
            yield server
        finally:
            for client in server.clients:
                client.stream.socket.close()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # hypercorn's workers, too
            with trio.CancelScope(shield=True):
                await process.wait()
