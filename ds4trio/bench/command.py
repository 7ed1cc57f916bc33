"""``ds4trio bench``: which load, against which server, and how its result is shown."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from ds4trio.bench.client import Target
from ds4trio.bench.storm import StormPlan, StormResult, storms
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from ds4trio.config import Settings


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """``url`` None: a server of our own, on a free port, for as long as the load lasts."""

    url: str | None = None
    key: str | None = None
    as_json: bool = False


def run_storm(settings: Settings, plan: StormPlan, options: BenchOptions) -> bool:
    """Blow all storms and print what they did. False if anything was left behind."""
    results = trio.run(partial(_with_server, settings, plan, options))
    if options.as_json:
        print(json.dumps([result.as_dict() for result in results], indent=2))
    else:
        print(storm_table(results))
    return all(result.clean for result in results)


async def _with_server(
    settings: Settings, plan: StormPlan, options: BenchOptions
) -> list[StormResult]:
    # Imported here: a server elsewhere needs no torch in this process.
    async with AsyncExitStack() as stack:
        url = options.url
        if url is None:
            from ds4trio.server.serve import serve
            from ds4trio.service import open_service

            engine = await stack.enter_async_context(open_service(settings))
            nursery = await stack.enter_async_context(trio.open_nursery())
            (url,) = await nursery.start(serve, engine, replace(settings, port=0))
            stack.callback(nursery.cancel_scope.cancel)
        try:
            return await storms(Target.parse(url, options.key), plan)
        except OSError as error:
            raise ConfigError(f"{url}: {error}") from None


def storm_table(results: list[StormResult]) -> str:
    """The results for people. Times in milliseconds."""
    lines = [
        f"{'storm':10}{'clients':>8}{'seconds':>9}{'next ms':>9}{'release ms':>14}"
        f"{'wasted':>12}{'neighbour':>11}  left behind"
    ]
    for r in results:
        release = f"{_ms(r.release_p50_s)} / {_ms(r.release_p99_s)}"
        wasted = f"{r.wasted_prompt_tokens} + {r.wasted_generated_tokens}"
        left = ", ".join(f"{name} {more:g}" for name, more in r.left_behind.items())
        lines.append(
            f"{r.storm:10}{r.clients:>8}{r.seconds:>9.1f}{r.next_answer_s * 1000:>9.0f}"
            f"{release:>14}{wasted:>12}{'same' if r.neighbour_unchanged else 'CHANGED':>11}"
            f"  {left or 'nothing'}"
        )
    lines.append("release: p50 / p99, known gone until let go; wasted: prompt + generated tokens")
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:g}"
