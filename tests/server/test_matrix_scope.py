"""The matrix's last way of leaving: the program around the server cancels it.

All requests end with it, each where it is; the engine is the caller's, and goes on.
"""

from __future__ import annotations

from contextlib import ExitStack

import h11
import pytest
import trio
import trio.testing
from dialects import Dialect, ask, every_dialect, whole_or_stream
from matrix import (
    CHUNK,
    PHASES,
    Phase,
    ThreadHold,
    last_write_held,
    post_victim,
    request_lines,
    tokenizing_held,
)
from serving import Baseline, Client, Server, serving, until

ID = "victim"


@every_dialect
@whole_or_stream
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
async def test_the_embedders_scope(dialect: Dialect, stream: bool, phase: Phase) -> None:
    descriptors = (await Baseline.take()).descriptors
    with request_lines() as lines, ExitStack() as holds:
        async with serving(gated=True, max_running=1, prefill_chunk_tokens=CHUNK) as server:
            async with trio.open_nursery() as nursery:
                if phase.name == "queue":
                    nursery.start_soon(_before, server, dialect)
                    await server.gate.reached(1)
                reached = trio.Event()
                if phase.name == "tokenize":
                    hold = ThreadHold("x" * CHUNK)
                    holds.enter_context(tokenizing_held(hold))
                    reached = hold.entered
                elif phase.name == "tail":
                    reached = holds.enter_context(
                        last_write_held(lambda: server.state.live.get(ID))
                    )
                client = await post_victim(
                    server,
                    dialect,
                    phase,
                    {"x-request-id": ID},
                    stream=stream,
                    max_tokens=phase.max_tokens,
                )
                await until(lambda: ID in server.state.live)
                exchange = server.state.live[ID]
                forwards = phase.forward if phase.is_computed else int(phase.name == "queue")
                if phase.name in ("tokenize", "tail"):
                    server.gate.release(forwards - 1)
                    await reached.wait()
                    forwards -= phase.name == "tail"
                elif phase.name == "queue":
                    await until(lambda: server.engine.engine.stats.waiting == 1)
                elif forwards:
                    server.gate.release(forwards - 1)
                    await server.gate.reached(forwards)
                await trio.testing.wait_all_tasks_blocked()
                server.scope.cancel()
                await trio.testing.wait_all_tasks_blocked()
                server.gate.open()
                nursery.cancel_scope.cancel()
            await until(lambda: server.scope.cancelled_caught)
            assert exchange.record.outcome == "shutdown"
            await _check_end(client, dialect, phase)
            assert len(server.model.forwards) == forwards
            assert not server.model.live_states
            async with server.engine.complete("Hi", max_tokens=2) as reply:
                assert len(await reply.text()) == 2
            (line,) = [line for line in lines.requests if line["id"] == ID]
            assert (line["outcome"], line["phase"]) == ("shutdown", phase.told)
            assert not lines.complaints
    assert (await Baseline.take()).descriptors == descriptors


async def _before(server: Server, dialect: Dialect) -> None:
    await ask(server, dialect, "before ", stream=True, max_tokens=2)


async def _check_end(client: Client, dialect: Dialect, phase: Phase) -> None:
    """What the client has cannot be taken for a whole answer."""
    if phase.name == "tail":  # the write that was under way: nothing can follow it
        with pytest.raises((h11.RemoteProtocolError, trio.BrokenResourceError)):
            await client.response()
        return
    head = await client.head()
    body = await client.rest()
    if head.status_code == 200:
        dialect.last_error(body)
    else:
        assert head.status_code == 503
