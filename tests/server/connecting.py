"""Our connection around a small application, and a client that can do what clients do."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import h11
import trio
import trio.testing

from ds4trio.server.connection import ConnectionLimits, ConnectionLost, serve_connection
from ds4trio.server.http_server import HttpServer

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ds4trio.server.asgi_types import Application

Receive = Any
Send = Any
Scope = dict[str, Any]

GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
LIMITS = ConnectionLimits()


def post(body: bytes, *extra: bytes) -> bytes:
    head = [b"POST / HTTP/1.1", b"Host: test", b"Content-Length: %d" % len(body), *extra]
    return b"\r\n".join([*head, b"", body])


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Client:
    """Reads with h11's client side, so that framing is judged by something other than us."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._behind = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self, method: str = "GET") -> Answer:
        """The next final response, skipping informational ones."""
        http = h11.Connection(h11.CLIENT, 1 << 20)
        http.send(h11.Request(method=method, target="/", headers=[("host", "test")]))
        http.send(h11.EndOfMessage())
        if self._behind:
            http.receive_data(self._behind)
        head: h11.Response | None = None
        body = b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await self.stream.receive_some(1 << 16)))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                assert isinstance(event, h11.InformationalResponse), event
        self._behind = http.trailing_data[0]
        assert head is not None
        return Answer(head.status_code, dict(head.headers), body)

    async def read(self, count: int) -> bytes:
        """Exactly so many raw bytes."""
        data = b""
        while len(data) < count:
            more = await self.stream.receive_some(count - len(data))
            assert more, data
            data += more
        return data

    async def until(self, end: bytes) -> bytes:
        """Raw bytes up to a mark."""
        data = b""
        while not data.endswith(end):
            data += await self.read(1)
        return data

    async def rest(self) -> bytes:
        """Raw bytes up to the server's FIN, including what ``answer`` has read ahead."""
        data, self._behind = self._behind, b""
        while more := await self.stream.receive_some(1 << 16):
            data += more
        return data

    async def fin(self) -> None:
        await self.stream.aclose()

    async def half_close(self) -> None:
        assert isinstance(self.stream, trio.abc.HalfCloseableStream)
        await self.stream.send_eof()

    async def rst(self) -> None:
        assert isinstance(self.stream, trio.SocketStream)
        linger = struct.pack("ii", 1, 0)
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await self.stream.aclose()


@dataclass
class Running:
    """A server on loopback. ``accepted`` are its own streams, in order."""

    port: int
    draining: trio.Event
    server: HttpServer
    accepted: list[trio.abc.Stream] = field(default_factory=list)
    connected: int = 0
    _ended: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    async def connect(self, receive_buffer_bytes: int | None = None) -> Client:
        sock = trio.socket.socket()
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await sock.connect(("127.0.0.1", self.port))
        self.connected += 1
        return Client(trio.SocketStream(sock))

    async def all_ended(self) -> None:
        """Until each connection that was made was served to its end."""
        while self.server.open_connections or len(self.accepted) < self.connected:
            await self._ended.park()

    async def handle(self, stream: trio.abc.Stream) -> None:
        self.accepted.append(stream)
        try:
            await self.server(stream)
        finally:
            self._ended.unpark_all()


@asynccontextmanager
async def running(
    app: Application, limits: ConnectionLimits = LIMITS, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Running]:
    """Serve on loopback. At the end all connections must have ended and all descriptors be back."""
    draining = trio.Event()
    (tcp,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = HttpServer(app, limits=limits, state={"of": "lifespan"}, draining=draining)
    run = Running(tcp.socket.getsockname()[1], draining, server)
    listeners: list[Any] = [tcp]
    if tls is not None:
        listeners = [trio.SSLListener(tcp, tls, https_compatible=True)]
    baseline = descriptors()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, run.handle, listeners)
        yield run
        await run.all_ended()
        assert descriptors() == baseline
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def in_memory(
    app: Application,
    limits: ConnectionLimits = LIMITS,
    draining: trio.Event | None = None,
) -> AsyncIterator[Client]:
    """One connection over memory streams. It must end when the client has closed."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await serve_connection(
                app,
                theirs,
                limits=limits,
                state={},
                draining=trio.Event() if draining is None else draining,
            )

        nursery.start_soon(serve)
        yield Client(ours)
        await ours.aclose()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


async def read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request", message
        body += bytes(message["body"])
        if not message["more_body"]:
            return body


async def respond(
    send: Send, body: bytes = b"", status: int = 200, *headers: tuple[bytes, bytes]
) -> None:
    """A whole response with its length."""
    fields = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def start_stream(send: Send) -> None:
    """A response of unknown length, its head written."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": True})


async def chunk(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, await read_body(receive))


async def chunks(send: Send, data: bytes) -> NoReturn:
    """Until ``send`` raises."""
    while True:
        await chunk(send, data)
        await trio.lowlevel.checkpoint()


@dataclass
class Recorder:
    """An application that notes what ``receive`` says when its client leaves.

    ``act`` is what it does meanwhile. ``begun`` and ``left`` are set once per request, in order.
    """

    act: Callable[[Scope, Receive, Send], Awaitable[None]]
    paths: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    begun: trio.Event = field(default_factory=trio.Event)
    left: trio.Event = field(default_factory=trio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        async with trio.open_nursery() as nursery:

            async def work() -> None:
                self.begun.set()
                with suppress(ConnectionLost):
                    await self.act(scope, receive, send)

            nursery.start_soon(work)
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    again = await receive()
                    assert again == message
                    self.reasons.append(message["reason"])
                    self.left.set()
                    nursery.cancel_scope.cancel()
                    return
