"""The command line's loads against a real server around a scripted model: counts, not times."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import trio
from serving import repeating, serving

from ds4trio.bench.loop import loop_figures
from ds4trio.bench.plans import CasePlan
from ds4trio.bench.tables import loop_table
from ds4trio.cli import main
from ds4trio.config import Settings
from ds4trio.testing import ScriptedModel, open_scripted_engine


async def run_main(*arguments: str) -> int:
    """Its exit code, from a thread: a load runs a Trio of its own."""

    def run() -> int:
        with pytest.raises(SystemExit) as ended:
            main(["bench", *arguments])
        return ended.value.code if isinstance(ended.value.code, int) else 1

    return await trio.to_thread.run_sync(run)


async def test_loads(capsys: pytest.CaptureFixture[str]) -> None:
    """Our own server counts as the loads do; a comparison with itself has all its figures."""
    few = ("--max-tokens", "6", "--rounds", "2", "--seed", "1", "--json")
    async with serving(repeating) as server:
        for load, cases in (("throughput", 2), ("prefill", 2), ("latency", 2), ("compare", 2)):
            other = [server.url] if load == "compare" else []
            assert await run_main(load, *other, "--url", server.url, "--streams", "1,3",
                                  "--prompt-tokens", "8", *few) == 0  # fmt: skip
            found: Any = json.loads(capsys.readouterr().out)
            assert (found["load"], found["seed"], len(found["cases"])) == (load, 1, cases)
            for row, streams in zip(found["cases"], (1, 3), strict=True):
                for side in (row["a"], row["b"]) if load == "compare" else (row,):
                    assert (side["streams"], side["generated_tokens"]) == (streams, 6)
                    assert side["rounds"] == 2
                    assert side["tokens_per_s"] > 0
        assert server.engine.engine.stats.running == 0


async def test_a_server_that_is_not_there() -> None:
    assert await run_main("latency", "--url", "http://127.0.0.1:9") == 1


async def test_the_loop_beside_a_model() -> None:
    """Of two goes, the tokens of the one whose cost is measured are counted."""
    plan = CasePlan((3,), (8,), max_tokens=20, rounds=1)
    async with open_scripted_engine(ScriptedModel()) as service:
        figures = await loop_figures(service, Settings(), plan, streams=3)
        assert (figures.streams, figures.tokens) == (3, 60)
        assert service.engine.stats.generated_tokens == 120
    assert figures.cpu_share_of_a_core == pytest.approx(
        figures.cpu_us_per_token / 1e6 * figures.tokens_per_s
    )
    assert 0 <= figures.late_p50_ms <= figures.late_p99_ms <= figures.late_max_ms
    assert "cpu_us_per_token" in loop_table(asdict(figures))
