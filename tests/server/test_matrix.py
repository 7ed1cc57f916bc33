"""However a client leaves, in every protocol, mode and phase: its work ends, and nobody notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from dialects import DIALECTS, Dialect, every_dialect, whole_or_stream
from matrix import CHUNK, PHASES, WAYS, Cell, Way, meaningless, request_lines
from serving import Client, serving, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

#: Protocols in which one request may ask for several answers.
TAKES_N = {"chat", "completions"}


@every_dialect
@whole_or_stream
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_leaving(mock_clock: MockClock, dialect: Dialect, stream: bool, way: Way) -> None:
    """One server for all phases, so that each finds it as the one before has left it."""
    with request_lines() as lines:
        async with serving(max_running=2, prefill_chunk_tokens=CHUNK, **way.settings) as server:
            for phase in PHASES:
                if meaningless(way, phase) is None:
                    try:
                        await Cell(server, mock_clock, dialect, way, phase, stream=stream).run(
                            lines
                        )
                    except BaseException as error:
                        error.add_note(f"in the phase: {phase.name}")
                        raise


@pytest.mark.parametrize(
    "dialect", [d for d in DIALECTS if d.name in TAKES_N], ids=lambda d: d.name
)
@whole_or_stream
@pytest.mark.parametrize("leave", [Client.fin, Client.rst], ids=["FIN", "RST"])
async def test_all_of_several_answers_stop_in_the_same_step(
    dialect: Dialect, stream: bool, leave: Callable[[Client], Awaitable[None]]
) -> None:
    """Two of them compute, the third still waits for a place."""
    async with serving(gated=True, max_running=2) as server:
        client = await server.connect()
        fields = dialect.fields("Hi", stream=stream, max_tokens=2000, n=3)
        await client.post(dialect.path, fields, {"x-request-id": "victim"})
        server.gate.release(5)
        await server.gate.reached(6)
        stats = server.engine.engine.stats
        assert (stats.running, stats.waiting) == (2, 1)
        exchange = server.state.live["victim"]
        await leave(client)
        await until(lambda: exchange.record.outcome is not None)
        await trio.testing.wait_all_tasks_blocked()
        server.gate.open()
        await server.idle()
        assert (stats.running, stats.waiting) == (0, 0)
        assert len(server.model.forwards) == 6
        assert stats.wasted_generated_tokens <= 2
        assert not server.model.live_states
