"""A real server over real sockets, around a scripted model; and a client that can misbehave."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11
import trio

import ds4trio
from ds4trio.testing import ScriptedModel, open_scripted_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    engine: ds4trio.Service
    model: ScriptedModel

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def connect(self, **options: int) -> Client:
        return await Client.connect(self.host, self.port, **options)

    async def metrics(self) -> dict[str, float]:
        """Samples by their full name with labels, as in the text format."""
        async with await self.connect() as client:
            await client.request("GET", "/metrics")
            _, body = await client.response()
        lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@asynccontextmanager
async def serving(
    model: ScriptedModel | None = None, **settings: Any
) -> AsyncIterator[Server]:  # fmt: skip
    """A server on a free port of the loopback address, for as long as the block lasts."""
    model = model or ScriptedModel()
    chosen = ds4trio.Settings(port=0, **settings)
    async with open_scripted_engine(model, chosen) as engine, trio.open_nursery() as nursery:
        (url,) = await nursery.start(ds4trio.serve, engine, chosen)
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        yield Server(where.hostname, where.port, engine, model)
        nursery.cancel_scope.cancel()


class Client:
    """One HTTP/1.1 connection, one request at a time; each way of leaving is a method."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    @classmethod
    async def connect(cls, host: str, port: int, *, receive_buffer: int | None = None) -> Client:
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect((host, port))
        return cls(trio.SocketStream(sock))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stream.aclose()

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        head = {"host": "test", "content-length": str(len(body)), **(headers or {})}
        request = h11.Request(method=method, target=path, headers=list(head.items()))
        data = self.http.send(request) + (self.http.send(h11.Data(data=body)) if body else b"")
        await self.stream.send_all(data + (self.http.send(h11.EndOfMessage()) or b""))

    async def post(self, path: str, fields: Any, headers: dict[str, str] | None = None) -> None:  # noqa: ANN401 - JSON
        head = {"content-type": "application/json", **(headers or {})}
        await self.request("POST", path, json.dumps(fields).encode(), head)

    async def event(self) -> object:
        """The next h11 event; a cut response raises h11.RemoteProtocolError."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.receive_some(65536))
        return event

    async def head(self) -> h11.Response:
        event = await self.event()
        assert isinstance(event, h11.Response), event
        return event

    async def data(self) -> bytes:
        """The next piece of the body; empty at its end."""
        event = await self.event()
        if isinstance(event, h11.EndOfMessage):
            return b""
        assert isinstance(event, h11.Data), event
        return bytes(event.data)

    async def response(self) -> tuple[int, bytes]:
        """Status and whole body."""
        head = await self.head()
        body = b""
        while piece := await self.data():
            body += piece
        return head.status_code, body

    async def json(self) -> tuple[int, Any]:
        status, body = await self.response()
        return status, json.loads(body)

    async def fin(self) -> None:
        """Leave as a program that closes its socket does."""
        await self.stream.aclose()

    async def rst(self) -> None:
        """Leave as a program that is killed with unread data does."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()
