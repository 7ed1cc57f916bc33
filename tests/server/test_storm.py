"""`ds4trio bench storm` in this process, against a scripted server: hundreds of clients leave."""

from __future__ import annotations

from matrix import request_lines
from serving import Baseline, serving

from ds4trio.bench.client import BODIES, Target
from ds4trio.bench.storm import StormPlan, storms
from ds4trio.protocols.table import PROTOCOLS

PLAN = StormPlan(timeouts=40, killed_streams=40, requests=300, concurrency=32, life_s=0.3, seed=1)


def test_every_protocol_is_in_the_storm() -> None:
    assert BODIES.keys() == PROTOCOLS.keys()


async def test_a_small_storm_leaves_nothing_behind() -> None:
    """And not one line of complaint: clients that leave are no errors."""
    with request_lines() as lines:
        async with serving(max_running=8, max_waiting=500, context_tokens=20_000) as server:
            baseline = await Baseline.take()
            results = await storms(Target(server.host, server.port), PLAN)
            await server.idle()
            assert [result.as_dict() for result in results if not result.clean] == []
            assert [result.storm for result in results] == ["timeouts", "killed", "random"]
            stats = server.engine.engine.stats
            assert (stats.running, stats.waiting) == (0, 0)
            assert not server.model.live_states
            assert await Baseline.take() == baseline
    assert not lines.complaints
    outcomes = {line["outcome"] for line in lines.requests}
    assert outcomes <= {"completed", "client_gone", "stalled", "cancelled", "rejected"}
    assert "client_gone" in outcomes
