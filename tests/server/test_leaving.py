"""A client that leaves takes its work along: in every protocol, mode, way and phase.

The engine's worker is held inside a forward while the client leaves, and goes on only when the
server has noticed. So what is asked is not "how fast" but "what is still computed".
"""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from subprocess import DEVNULL
from typing import TYPE_CHECKING, TypeAlias

import pytest
import trio
import trio.testing
from dialects import (
    Dialect,
    ask,
    every_dialect,
    prompt_tokens,
    requests_total,
    whole_or_stream,
)
from serving import Baseline, Client, Server, serving, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CHUNK = 16
#: A prompt of four chunks.
SAID = "x" * (4 * CHUNK - prompt_tokens(""))
CHUNKS = 4
ID = "the-one"

Leave: TypeAlias = "Callable[[Client], Awaitable[None]]"
WAYS = {"fin": Client.fin, "rst": Client.rst}
every_way = pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())

#: The forward in which the worker is held while the client leaves, and the phase to be told.
MOMENTS = {
    "prefill chunk 1": (1, "prefill"),
    "prefill chunk 2": (2, "prefill"),
    "prefill chunk 3": (3, "prefill"),
    "last chunk": (CHUNKS, "prefill"),
    "first token": (CHUNKS + 1, "decode"),
    "decode": (CHUNKS + 6, "decode"),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What /metrics says of a client that left."""

    gone: float
    in_phase: float
    wasted_generated: float
    wasted_prompt: float
    sequences: float


async def figures(server: Server, dialect: Dialect, stream: bool, phase: str) -> Figures:
    said = await server.metrics()
    return Figures(
        gone=said.get(requests_total(dialect, stream, "client_gone"), 0),
        in_phase=said[f'ds4trio_disconnects_total{{phase="{phase}"}}'],
        wasted_generated=said["ds4trio_wasted_generated_tokens_total"],
        wasted_prompt=said["ds4trio_wasted_prompt_tokens_total"],
        sequences=sum(said[f'ds4trio_sequences{{state="{s}"}}'] for s in ("running", "waiting")),
    )


async def knows(server: Server, request_id: str = ID) -> None:
    """Until the server knows that the client is gone, and the worker has been told."""
    exchange = server.state.live[request_id]
    await until(lambda: exchange.record.outcome is not None)
    await trio.testing.wait_all_tasks_blocked()


@every_dialect
@whole_or_stream
@every_way
@pytest.mark.parametrize("moment", MOMENTS)
async def test_nothing_is_computed_any_more(
    dialect: Dialect, stream: bool, leave: Leave, moment: str
) -> None:
    """One place: the next in the queue has it in the very next step."""
    held, phase = MOMENTS[moment]
    async with serving(gated=True, prefill_chunk_tokens=CHUNK, max_running=1) as server:
        baseline = await Baseline.take()
        client = await server.connect()
        fields = dialect.fields(SAID, stream=stream, max_tokens=2000)
        await client.post(dialect.path, fields, {"x-request-id": ID})
        server.gate.release(held - 1)
        await server.gate.reached(held)
        # What the forwards before have said is delivered (and, in a stream, written).
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def behind() -> None:
                answer = await ask(server, dialect, "next ", stream=True, max_tokens=3)
                assert answer.text == "nex"

            await until(lambda: server.engine.engine.stats.waiting == 1)
            await leave(client)
            await knows(server)
            server.gate.open()
        await server.idle()
        assert [number for number, _ in server.rows(0)] == list(range(1, held + 1))
        assert server.rows(1)[0][0] == held + 1
        told = await figures(server, dialect, stream, phase)
        assert (told.gone, told.in_phase) == (1, 1)
        assert told.wasted_generated == (phase == "decode")
        assert told.wasted_prompt == (CHUNK if phase == "prefill" else 0)
        assert told.sequences == 0
        assert not server.model.live_states
        assert await Baseline.take() == baseline


@every_dialect
@whole_or_stream
@every_way
async def test_in_the_queue(dialect: Dialect, stream: bool, leave: Leave) -> None:
    """Nothing is ever computed, and those behind move up."""
    async with serving(gated=True, prefill_chunk_tokens=CHUNK, max_running=1) as server:
        texts: list[str] = []

        async def read(said: str, max_tokens: int) -> None:
            answer = await ask(server, dialect, said, stream=stream, max_tokens=max_tokens)
            texts.append(answer.text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, "first", 5)
            await server.gate.reached(1)
            client = await server.connect()
            fields = dialect.fields(SAID, stream=stream, max_tokens=2000)
            await client.post(dialect.path, fields, {"x-request-id": ID})
            await until(lambda: server.engine.engine.stats.waiting == 1)
            nursery.start_soon(read, "last", 4)
            await until(lambda: server.engine.engine.stats.waiting == 2)
            await leave(client)
            await knows(server)
            server.gate.open()
        await server.idle()
        assert sorted(texts) == ["first", "last"]
        assert all(b"x" not in bytes(row.token_ids[1:])
                   for rows in server.model.forwards for row in rows)  # fmt: skip
        told = await figures(server, dialect, stream, "queue")
        assert told == Figures(gone=1, in_phase=1, wasted_generated=0, wasted_prompt=0, sequences=0)
        # The state that was never needed was never made.
        assert {row.sequence for rows in server.model.forwards for row in rows} == {0, 1}


@every_dialect
@whole_or_stream
@every_way
@pytest.mark.parametrize("sent", [0, 1, 20], ids="{} bytes".format)
async def test_in_the_body(dialect: Dialect, stream: bool, leave: Leave, sent: int) -> None:
    async with serving() as server:
        baseline = await Baseline.take()
        client = await server.connect()
        head = {"x-request-id": ID, "content-type": "application/json"}
        await client.begin("POST", dialect.path, 1000, head)
        await client.stream.send_all(b'{"prompt":' + b" " * 20 if sent else b"")
        await until(lambda: ID in server.state.live)
        await leave(client)
        await server.idle()
        assert not server.model.forwards
        # Nobody knows yet whether it wanted a stream.
        told = await figures(server, dialect, False, "body")
        assert (told.gone, told.in_phase, told.sequences) == (1, 1, 0)
        assert await Baseline.take() == baseline


@every_dialect
@whole_or_stream
@every_way
async def test_after_the_last_byte_it_was_finished(
    dialect: Dialect, stream: bool, leave: Leave
) -> None:
    """An answer that was written is complete, read or not."""
    async with serving() as server:
        client = await server.connect()
        fields = dialect.fields("Hi", stream=stream, max_tokens=4)
        await client.post(dialect.path, fields, {"x-request-id": ID})
        await until(lambda: len(server.model.forwards) == 4)
        await server.idle()
        await leave(client)
        await trio.testing.wait_all_tasks_blocked(0.005)
        told = await server.metrics()
        assert told[requests_total(dialect, stream, "completed")] == 1
        assert requests_total(dialect, stream, "client_gone") not in told
        assert sum(v for name, v in told.items() if name.startswith("ds4trio_disconnects")) == 0
        assert told["ds4trio_wasted_generated_tokens_total"] == 0


@every_dialect
@whole_or_stream
@every_way
async def test_in_the_only_step(dialect: Dialect, stream: bool, leave: Leave) -> None:
    """With one token wanted and its forward under way, it is still a loss, not a success."""
    async with serving(gated=True) as server:
        client = await server.connect()
        fields = dialect.fields("Hi", stream=stream, max_tokens=1)
        await client.post(dialect.path, fields, {"x-request-id": ID})
        await server.gate.reached(1)
        await leave(client)
        await knows(server)
        server.gate.open()
        await server.idle()
        told = await server.metrics()
        assert told[requests_total(dialect, stream, "client_gone")] == 1
        assert requests_total(dialect, stream, "completed") not in told
        assert told["ds4trio_generated_tokens_total"] == 0
        assert not server.model.live_states


@every_dialect
@whole_or_stream
async def test_while_text_is_held_back(dialect: Dialect, stream: bool) -> None:
    """What may be a stop string is not sent, but the phase is what it is."""
    async with serving(gated=True) as server:
        client = await server.connect()
        fields = dialect.fields("</EN", stream=stream, stop="</END>", max_tokens=2000)
        await client.post(dialect.path, fields, {"x-request-id": ID})
        server.gate.release(3)
        await server.gate.reached(4)
        await trio.testing.wait_all_tasks_blocked()
        await client.fin()
        await knows(server)
        server.gate.open()
        await server.idle()
        told = await figures(server, dialect, stream, "decode")
        assert told == Figures(gone=1, in_phase=1, wasted_generated=1, wasted_prompt=0, sequences=0)


@every_dialect
@whole_or_stream
async def test_neighbours_notice_nothing(dialect: Dialect, stream: bool) -> None:
    """Eight side by side; every second one leaves, each in another step."""
    async with serving(gated=True, prefill_chunk_tokens=CHUNK) as server:
        texts: dict[str, str] = {}

        async def stay(said: str) -> None:
            answer = await ask(server, dialect, said, stream=stream, max_tokens=40)
            texts[said] = answer.text

        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            leavers = []
            for number in range(4):
                nursery.start_soon(stay, f"stays {number}; ")
                client = await stack.enter_async_context(await server.connect())
                fields = dialect.fields(f"leaves {number}; ", stream=stream, max_tokens=2000)
                await client.post(dialect.path, fields, {"x-request-id": f"leaver-{number}"})
                leavers.append(client)
            stats = server.engine.engine.stats
            await until(lambda: stats.running + stats.waiting == 8)
            for number, client in enumerate(leavers):
                server.gate.release(5)
                await server.gate.reached(5 * number + 6)
                await (client.fin() if number % 2 else client.rst())
                await knows(server, f"leaver-{number}")
            server.gate.open()
        await server.idle()
        assert texts == {
            said: (said * 40)[:40] for said in (f"stays {number}; " for number in range(4))
        }
        told = await server.metrics()
        assert told[requests_total(dialect, stream, "client_gone")] == 4
        assert told[requests_total(dialect, stream, "completed")] == 4
        assert told["ds4trio_wasted_generated_tokens_total"] <= 4
        assert not server.model.live_states


CLIENT_PROGRAM = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
head = {"content-type": "application/json", "x-request-id": "the-one"}
connection.request("POST", sys.argv[2], sys.argv[3], head)
connection.getresponse().read()
"""


@every_dialect
@whole_or_stream
async def test_a_client_that_is_killed(dialect: Dialect, stream: bool) -> None:
    async with serving(gated=True) as server:
        fields = json.dumps(dialect.fields("Hi", stream=stream, max_tokens=2000))
        command = [sys.executable, "-c", CLIENT_PROGRAM, str(server.port), dialect.path, fields]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(trio.run_process, command, stdout=DEVNULL, stderr=DEVNULL, check=False)
            )
            server.gate.release(9)
            await server.gate.reached(10)
            await trio.testing.wait_all_tasks_blocked()
            process.kill()
            await knows(server)
            server.gate.open()
        await server.idle()
        assert len(server.model.forwards) == 10
        told = await figures(server, dialect, stream, "decode")
        assert told == Figures(gone=1, in_phase=1, wasted_generated=1, wasted_prompt=0, sequences=0)
