"""A stream that is being answered, and beside it whatever ends or blocks other servers.

Each row is an input that ended the worker of a stock server, or made it deaf, in an experiment.
"""

from __future__ import annotations

import json
import resource
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from dialects import DIALECTS, ask
from matrix import RequestLines, request_lines
from serving import Baseline, Server, serving, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHAT = DIALECTS[0]
BODY = json.dumps(CHAT.fields("other ", stream=True, max_tokens=2)).encode()


def head(*lines: str, path: str = CHAT.path) -> bytes:
    start = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    return "\r\n".join([*start, *lines, "", ""]).encode()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PRIORITY = b"\x00\x00\x05\x02\x00\x00\x00\x00\x01\x00\x00\x00\x00\x10"
GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8)
CHUNKED = head("transfer-encoding: chunked")

ROWS = {
    "a bad chunk in the middle of a body": CHUNKED + b'5\r\n{"mes\r\nnonsense\r\n',
    "a chunk with a bad size": CHUNKED + b"-5\r\n",
    "a large body that is refused unread": head("content-length: 50000000") + b" " * 900_000,
    "many tiny chunks of a body that is refused": head(
        "transfer-encoding: chunked", "content-encoding: gzip"
    )
    + b"1\r\n \r\n" * 2000,
    "a pipelined request": (head(f"content-length: {len(BODY)}") + BODY) * 2,
    "twenty pipelined requests": (head(f"content-length: {len(BODY)}") + BODY) * 20,
    "an empty line behind the body": head(f"content-length: {len(BODY)}") + BODY + b"\r\n",
    "an HTTP/2 preface": PREFACE + SETTINGS,
    "GOAWAY": PREFACE + SETTINGS + GOAWAY,
    "a thousand PRIORITY frames": PREFACE + SETTINGS + PRIORITY * 1100,
    "an upgrade to HTTP/2 with bad settings": head(
        "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: !!!"
    ),
    "a path that is not ASCII": b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a method that is not ASCII": b"G\xc3\x89T / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a query that is not UTF-8": b"GET /health?%ff=\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "CONNECT": b"CONNECT test:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "CONNECT without a target": b"CONNECT  HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a WebSocket": b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    "headers without end": b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
    "JSON nested without end": head("content-length: 200000") + b"[" * 200_000,
    "JSON that is not UTF-8": head("content-length: 14") + b'{"model":"\xff"}',
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "nothing but zeros": bytes(100_000),
}


@asynccontextmanager
async def beside_a_victim(lines: RequestLines) -> AsyncIterator[Server]:
    """The victim is in the middle of its answer when the block begins, and goes on after it."""
    async with serving(gated=True) as server:
        victim = await server.connect()
        await victim.post(
            CHAT.path,
            CHAT.fields("victim ", stream=True, max_tokens=20),
            {"x-request-id": "victim"},
        )
        server.gate.release(5)
        await server.gate.reached(6)
        baseline = await Baseline.take()
        yield server
        server.gate.open()
        status, body = await victim.response()
        assert (status, CHAT.read(body, stream=True).text) == (200, ("victim " * 3)[:20])
        assert (await ask(server, CHAT, "next ", stream=False, max_tokens=4)).text == "next"
        await server.idle()
        after = await Baseline.take()
        assert after.tasks <= baseline.tasks
        assert after.descriptors <= baseline.descriptors
    assert [line["outcome"] for line in lines.requests if line["id"] == "victim"] == ["completed"]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("end", ["fin", "rst"])
async def test_what_ends_other_servers(row: str, end: str) -> None:
    with request_lines() as lines:
        async with beside_a_victim(lines) as server:
            client = await server.connect()
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def send() -> None:
                    # It may be cut.
                    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                        await client.stream.send_all(ROWS[row])

                await trio.testing.wait_all_tasks_blocked(0.005)
                await (client.fin() if end == "fin" else client.rst())
            await trio.testing.wait_all_tasks_blocked(0.005)
    assert not lines.complaints


async def test_running_out_of_descriptors() -> None:
    """Whoever has a connection is answered on it; the others as soon as there are descriptors."""
    with request_lines() as lines:
        async with beside_a_victim(lines) as server:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            used = (await Baseline.take()).descriptors
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
            clients = []
            try:
                with suppress(OSError):
                    while True:
                        clients.append(await server.connect())
                early = clients[0]
                await early.post(CHAT.path, CHAT.fields("early ", stream=True, max_tokens=3))
                await until(lambda: server.engine.engine.stats.waiting == 1)
                server.gate.release(4)
                status, body = await early.response()
                assert (status, CHAT.read(body, stream=True).text) == (200, "ear")
            finally:
                for client in clients:
                    client.stream.socket.close()
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not lines.complaints
