"""``ds4trio bench``: which load, against which server, and how its result is shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from ds4trio.bench.client import Target
from ds4trio.bench.storm import StormPlan, StormResult, storms
from ds4trio.config import as_environ
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
    if options.url is not None:
        return await _storms(options.url, plan, options)
    async with server_process(settings) as url:
        return await _storms(url, plan, options)


async def _storms(url: str, plan: StormPlan, options: BenchOptions) -> list[StormResult]:
    try:
        return await storms(Target.parse(url, options.key), plan)
    except OSError as error:
        raise ConfigError(f"{url}: {error}") from None


@asynccontextmanager
async def server_process(settings: Settings) -> AsyncIterator[str]:
    """``ds4trio serve`` on a free port, in a process of its own: load and server must not share a
    loop. Gives its URL when it is ready. Raises: ConfigError if it ends instead."""
    wanted = {**os.environ, **as_environ(replace(settings, port=0))}
    command = [sys.executable, "-m", "ds4trio", "serve"]
    async with trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process(command, env=wanted, stderr=subprocess.PIPE)
        assert process.stderr is not None
        try:
            url = await _url_when_ready(process.stderr)
            nursery.start_soon(_drop, process.stderr)
            yield url
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await process.wait()
        nursery.cancel_scope.cancel()


async def _url_when_ready(log: trio.abc.ReceiveStream) -> str:
    said = ""
    async for piece in log:
        said += piece.decode(errors="replace")
        url = re.search(r"listening on (http\S+?),? ", said)
        if url and " is ready" in said:
            return url[1]
    raise ConfigError(said.strip().splitlines()[-1] if said.strip() else "the server did not start")


async def _drop(log: trio.abc.ReceiveStream) -> None:
    async for _ in log:
        pass


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
