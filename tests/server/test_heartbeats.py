"""Signs of life by the clock on the wall: what a client with a read timeout needs to stay.

`test_limits` has the same on a mock clock, which cannot tell whether the real one runs while the
worker computes.
"""

from __future__ import annotations

import pytest
import trio
from dialects import Dialect, every_dialect, stream_events
from serving import Client, Server, serving, until

HEARTBEAT_S = 0.05
BEATS = 4


async def beats(client: Client, dialect: Dialect) -> float:
    """Seconds until so many signs of life had come, and nothing between them."""
    body, found = b"", 0
    began = trio.current_time()
    # What opens a stream (two events at most) may look like one.
    while found < BEATS + 2:
        body += await client.data()
        if body.endswith(b"\n\n"):
            signs = [dialect.is_sign_of_life(event) for event in stream_events(body)]
            found = len(signs) if all(signs) else signs[::-1].index(False)
    return trio.current_time() - began


async def hold_in(server: Server, client: Client, phase: str) -> None:
    """Bring the request to where the server has nothing to say."""
    match phase:
        case "queue":
            await until(lambda: server.engine.engine.stats.waiting == 1)
        case "prefill":
            server.gate.release()
            await server.gate.reached(2)
        case "held-back text":
            server.gate.release(4)
            await server.gate.reached(5)
    assert (await client.head()).status_code == 200


@every_dialect
@pytest.mark.parametrize("phase", ["queue", "prefill", "held-back text"])
async def test_signs_of_life(dialect: Dialect, phase: str) -> None:
    async with serving(
        gated=True, heartbeat_s=HEARTBEAT_S, max_running=1, prefill_chunk_tokens=16
    ) as server:
        if phase == "queue":
            first = await server.connect()
            await first.post(dialect.path, dialect.fields("Hi", stream=True, max_tokens=9))
            await server.gate.reached(1)
        client = await server.connect()
        fields = dialect.fields("</EN", stream=True, stop="</END>", max_tokens=2000)
        await client.post(dialect.path, fields)
        await hold_in(server, client, phase)
        # No sooner than they should; how much later is the machine's business.
        assert await beats(client, dialect) >= (BEATS - 1) * HEARTBEAT_S
        assert server.gate.entered == {"queue": 1, "prefill": 2, "held-back text": 5}[phase]
