"""A real server over real sockets, around a scripted model; and a client that can misbehave."""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import urlsplit

import h11
import trio
import trio.testing

import ds4trio
from ds4trio.server import serve as serve_module
from ds4trio.testing import ScriptedModel, StepGate, open_scripted_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ds4trio.chat.format import ChatFormat
    from ds4trio.server.state import ServerState
    from ds4trio.testing import ForwardRow

#: What stands between a prompt and its answer, in each protocol (see `tests.server.dialects`).
ANSWER_MARK = b"assistant: "


def said(token_ids: Sequence[int]) -> tuple[bytes, bytes]:
    """A scripted sequence as what was asked and what was answered so far."""
    text = bytes(token_id for token_id in token_ids if token_id < 256)
    asked, _, answered = text.partition(ANSWER_MARK)
    return asked.removeprefix(b"user: ").removesuffix(b"\n"), answered


def saying(text: str, end_id: int) -> Callable[[Sequence[int]], int]:
    """A script whose every answer is ``text``."""
    data = text.encode()

    def script(token_ids: Sequence[int]) -> int:
        _, answered = said(token_ids)
        return data[len(answered)] if len(answered) < len(data) else end_id

    return script


def repeating(token_ids: Sequence[int]) -> int:
    """A script that says over and over what it was asked."""
    asked, answered = said(token_ids)
    return asked[len(answered) % len(asked)]


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that nothing announces. It must stay true once it is."""
    while not condition():
        await trio.testing.wait_all_tasks_blocked(0.001)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a request must give back. Compare when all is quiet."""

    tasks: int
    descriptors: int

    @classmethod
    async def take(cls) -> Baseline:
        await trio.testing.wait_all_tasks_blocked(0.005)
        tasks = trio.lowlevel.current_statistics().tasks_living
        return cls(tasks, len(os.listdir("/proc/self/fd")))


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    engine: ds4trio.Service
    model: ScriptedModel
    gate: StepGate
    state: ServerState
    #: Cancelling it is what a program does that serves and has had enough.
    scope: trio.CancelScope
    #: Clients of the test's own, closed at the end if it has not done so.
    clients: list[Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def connect(self, **options: int) -> Client:
        self.clients.append(await Client.connect(self.host, self.port, **options))
        return self.clients[-1]

    async def metrics(self) -> dict[str, float]:
        """Samples by their full name with labels, as in the text format."""
        async with await self.connect() as client:
            await client.request("GET", "/metrics")
            _, body = await client.response()
        lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def idle(self) -> None:
        """Until no request lives."""
        await until(lambda: not self.state.live)

    def rows(self, sequence: int) -> list[tuple[int, ForwardRow]]:
        """What the forwards computed for the sequence admitted as this one: number and row."""
        return [
            (number, row)
            for number, rows in enumerate(self.model.forwards, start=1)
            for row in rows
            if row.sequence == sequence
        ]


@asynccontextmanager
async def serving(
    script: Callable[[Sequence[int]], int] = repeating,
    *,
    logits: Callable[[Sequence[int]], Sequence[float]] | None = None,
    gated: bool = False,
    context_tokens: int = 4096,
    chat_format: ChatFormat | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """A server on a free port of the loopback address, for as long as the block lasts. ``logits``,
    if given, takes the place of the script.

    Conversations are plain lines, or in ``chat_format``.
    Its gate is shut from the start if it is ``gated``, and open at the end, however that comes.
    Forwards are those of a request alone, whatever was asked before: no prefixes are kept, unless
    that is set.
    """
    gate = StepGate()
    if not gated:
        gate.open()
    model = ScriptedModel(script, logits=logits, gate=gate, context_tokens=context_tokens)
    chosen = ds4trio.Settings(port=0, **({"prefix_cache": False} | settings))
    states: list[ServerState] = []

    def make_state(settings: ds4trio.Settings) -> ServerState:
        states.append(real_make_state(settings))
        return states[-1]

    real_make_state = serve_module.make_state
    scope = trio.CancelScope()

    async def serve(task_status: trio.TaskStatus[list[str]]) -> None:
        with scope:
            await ds4trio.serve(engine, chosen, task_status=task_status)

    async with open_scripted_engine(model, chosen) as scripted, trio.open_nursery() as nursery:
        engine = replace(scripted, chat_format=chat_format) if chat_format else scripted
        with mock.patch.object(serve_module, "make_state", make_state), gate.opened_at_exit():
            (url,) = await nursery.start(serve)
            where = urlsplit(url)
            assert where.hostname is not None
            assert where.port is not None
            await until(lambda: states[0].service is not None)
            server = Server(where.hostname, where.port, engine, model, gate, states[0], scope)
            try:
                yield server
            finally:
                for client in server.clients:
                    client.stream.socket.close()
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
        try:
            await sock.connect((host, port))
        except OSError:
            sock.close()
            raise
        return cls(trio.SocketStream(sock))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stream.aclose()

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        await self.begin(method, path, len(body), headers)
        data = self.http.send(h11.Data(data=body)) if body else b""
        await self.stream.send_all((data or b"") + (self.http.send(h11.EndOfMessage()) or b""))

    async def begin(
        self, method: str, path: str, body_bytes: int, headers: dict[str, str] | None = None
    ) -> None:
        """A request's head only, with the body still to come."""
        head = {"host": "localhost", "content-length": str(body_bytes), **(headers or {})}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in head.items()]
        request = h11.Request(method=method, target=path, headers=encoded)
        await self.stream.send_all(self.http.send(request) or b"")

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

    async def rest(self) -> bytes:
        """The body from here to its end."""
        body = b""
        while piece := await self.data():
            body += piece
        return body

    def take_ready(self) -> bytes:
        """What of the body has arrived, without waiting."""
        body = b""
        while True:
            event = self.http.next_event()
            if isinstance(event, h11.Data):
                body += event.data
            elif event is h11.NEED_DATA:
                try:
                    self.http.receive_data(os.read(self.stream.socket.fileno(), 65536))
                except BlockingIOError:
                    return body
            else:
                raise AssertionError(event)

    async def read_until(self, enough: Callable[[bytes], bool]) -> bytes:
        """The body from here, as soon as it is enough."""
        body = b""
        while not enough(body):
            piece = await self.data()
            assert piece, f"the body ended: {body!r}"
            body += piece
        return body

    async def response(self) -> tuple[int, bytes]:
        """Status and whole body."""
        head = await self.head()
        return head.status_code, await self.rest()

    async def json(self) -> tuple[int, Any]:
        status, body = await self.response()
        return status, json.loads(body)

    def again(self) -> None:
        """Make ready for the next request on this connection."""
        self.http.start_next_cycle()

    async def fin(self) -> None:
        """Leave as a program that closes its socket does."""
        await self.stream.aclose()

    async def rst(self) -> None:
        """Leave as a program that is killed with unread data does."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()


def headers(response: h11.Response) -> dict[str, str]:
    return {bytes(name).decode(): bytes(value).decode() for name, value in response.headers}
