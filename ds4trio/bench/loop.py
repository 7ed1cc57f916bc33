"""``ds4trio bench loop``: what serving costs the event loop while a model computes beside it.

The server runs in this process, its clients in another. What is measured is the thread that the
loop runs on: the CPU time it takes for each token that it sends, and how late it is.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import trio

from ds4trio.bench.figures import quantile
from ds4trio.errors import ConfigError
from ds4trio.server.serve import serve

if TYPE_CHECKING:
    from ds4trio.bench.plans import CasePlan
    from ds4trio.config import Settings
    from ds4trio.service import Service

#: How often the loop is asked how late it is. Asking costs it some 25 us.
ASK_EVERY_S = 0.002


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """``cpu_*`` are of the loop's thread alone, clients' connections and requests included.

    ``late_*``: by how much a sleep of 2 ms was longer.
    """

    streams: int
    tokens: int
    tokens_per_s: float
    cpu_us_per_token: float
    cpu_share_of_a_core: float
    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float


async def loop_figures(
    service: Service, settings: Settings, plan: CasePlan, streams: int
) -> LoopFigures:
    """Twice a load: once for the cost, once for the lateness, so that neither measurement is
    in the other. Raises: ConfigError."""
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(serve, service, replace(settings, port=0))
        tokens_before = service.engine.stats.generated_tokens
        cpu_began = time.thread_time()
        tokens_per_s = await _clients(url, plan, streams)
        cpu_s = time.thread_time() - cpu_began
        tokens = service.engine.stats.generated_tokens - tokens_before
        late: list[float] = []
        async with trio.open_nursery() as beside:
            beside.start_soon(_ask_how_late, late)
            await _clients(url, plan, streams)
            beside.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    return LoopFigures(
        streams=streams,
        tokens=tokens,
        tokens_per_s=tokens_per_s,
        cpu_us_per_token=cpu_s / tokens * 1e6,
        cpu_share_of_a_core=cpu_s / tokens * tokens_per_s,
        late_p50_ms=(quantile(late, 0.5) or 0.0) * 1000,
        late_p99_ms=(quantile(late, 0.99) or 0.0) * 1000,
        late_max_ms=max(late, default=0.0) * 1000,
    )


async def _clients(url: str, plan: CasePlan, streams: int) -> float:
    """The load, from a process of its own; tokens a second. Raises: ConfigError."""
    command = [sys.executable, "-m", "ds4trio.bench.readers", url, str(streams)]
    command += [str(plan.prompt_tokens[0]), str(plan.max_tokens), str(plan.seeded())]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    if done.returncode:
        raise ConfigError(done.stderr.decode(errors="replace").strip().splitlines()[-1])
    return float(done.stdout)


async def _ask_how_late(late: list[float]) -> None:
    while True:
        due = trio.current_time() + ASK_EVERY_S
        await trio.sleep_until(due)
        late.append(trio.current_time() - due)
