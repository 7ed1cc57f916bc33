"""A small HTTP/1.1 client for benchmarks, which can leave in every way a client can.

It sends no more than it must and parses no more than it needs, so that a thousand of them do not
weigh on the machine they measure.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11
import trio

from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Requests for about as many tokens as asked, in each protocol's words.
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me a long story."}]},
    "/v1/completions": {"prompt": "Once upon a time"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Tell me a long story."}]},
    "/v1/responses": {"input": "Tell me a long story.", "store": False},
}


def request_body(path: str, *, stream: bool, max_tokens: int, **more: object) -> dict[str, Any]:
    """A greedy generation request for one of the server's protocols."""
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return {**BODIES[path], "stream": stream, limit: max_tokens, "temperature": 0, **more}


@dataclass(frozen=True, slots=True)
class Target:
    """A server to put a load on. ``key`` is sent as a bearer token."""

    host: str
    port: int
    tls: bool = False
    key: str | None = None

    @classmethod
    def parse(cls, url: str, key: str | None = None) -> Target:
        """Raises: ConfigError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url}: not a URL like http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, key)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    async def connect(self) -> Connection:
        """Raises: OSError."""
        stream = await trio.open_tcp_stream(self.host, self.port)
        if self.tls:
            context = ssl.create_default_context()
            secured = trio.SSLStream(stream, context, server_hostname=self.host)
            return Connection(self, stream, secured)
        return Connection(self, stream, stream)

    async def get(self, path: str) -> bytes:
        """A whole answer's body. Raises: OSError, h11.RemoteProtocolError."""
        async with await self.connect() as connection:
            await connection.send("GET", path)
            return await connection.read_all()


class Connection:
    """One connection for one request."""

    def __init__(self, target: Target, tcp: trio.SocketStream, stream: trio.abc.Stream) -> None:
        self._target = target
        self._tcp = tcp
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self.status: int | None = None
        self.request_id: str | None = None

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.move_on_after(1, shield=True):
            await self._stream.aclose()

    async def send(self, method: str, path: str, body: object = None) -> None:
        """Raises: trio.BrokenResourceError."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = [("host", self._target.host), ("content-length", str(len(data)))]
        if body is not None:
            headers.append(("content-type", "application/json"))
        if self._target.key is not None:
            headers.append(("authorization", f"Bearer {self._target.key}"))
        request = h11.Request(method=method, target=path, headers=headers)
        await self._stream.send_all(
            (self._http.send(request) or b"")
            + (self._http.send(h11.Data(data=data)) or b"")
            + (self._http.send(h11.EndOfMessage()) or b"")
        )

    async def read(self) -> bytes | None:
        """The next piece of the body; None at its proper end.

        Raises: h11.RemoteProtocolError if it is cut, trio.BrokenResourceError.
        """
        while True:
            event = self._http.next_event()
            match event:
                case h11.NEED_DATA:
                    self._http.receive_data(bytes(await self._stream.receive_some(65536)))
                case h11.Response():
                    self.status = event.status_code
                    ids = [value for name, value in event.headers if name == b"x-request-id"]
                    self.request_id = ids[0].decode() if ids else None
                case h11.Data():
                    return bytes(event.data)
                case h11.EndOfMessage():
                    return None

    async def read_all(self) -> bytes:
        pieces = []
        while (piece := await self.read()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    async def fin(self) -> None:
        """Close, as a program that is done does."""
        await self._tcp.aclose()

    async def rst(self) -> None:
        """Reset, as a program that is killed with unread data does."""
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._tcp.aclose()

    async def half_close(self) -> None:
        """Say that nothing more will be sent, then wait for the server's end of it."""
        await self._tcp.send_eof()
        with trio.move_on_after(5):
            while await self._tcp.receive_some(65536):
                pass
        await self._tcp.aclose()
