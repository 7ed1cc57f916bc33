"""``ds4trio bench cache``: how long a prompt's first token takes, computed, remembered, and read.

A server with a folder of its own answers prompts that it has never seen (*cold*), then the same
again (*memory*); another one, started after it, answers them once more (*disk*). Before that the
files are dropped from the machine's own memory, so that they are read from the disk indeed.
"""

from __future__ import annotations

import json
import os
import random
import statistics
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from ds4trio.bench.client import Target
from ds4trio.bench.command import server_process
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ds4trio.config import Settings

#: Of prompts: in every vocabulary, and hardly ever special.
TOKEN_IDS = range(32, 250)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """``repeats`` prompts of each length; of their times the median is told."""

    tokens: tuple[int, ...] = (1000, 4000, 8000)
    repeats: int = 3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CacheResult:
    """Of prompts of one length. Units: seconds to the first token."""

    tokens: int
    cold_s: float
    memory_s: float
    disk_s: float

    @property
    def gain(self) -> float:
        """How many times faster than cold a prompt is that was read from disk."""
        return self.cold_s / self.disk_s

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "gain": self.gain}


def run_cache(settings: Settings, plan: CachePlan, *, as_json: bool) -> None:
    """Time all prompts and print how long they took. Raises: ConfigError."""
    results = trio.run(cache_times, settings, plan)
    if as_json:
        print(json.dumps([result.as_dict() for result in results], indent=2))
    else:
        print(cache_table(results))


async def cache_times(settings: Settings, plan: CachePlan) -> list[CacheResult]:
    """Raises: ConfigError if a server does not start, or does not find what it was to keep."""
    rng = random.Random(plan.seed)
    prompts = [
        [rng.choices(TOKEN_IDS, k=tokens) for _ in range(plan.repeats)] for tokens in plan.tokens
    ]
    with TemporaryDirectory(prefix="ds4trio-bench-") as folder:
        chosen = replace(settings, cache_dir=Path(folder))
        async with _warm_server(chosen) as target:
            first = [
                [(await _answer_s(target, ids, 0), await _known_s(target, ids)) for ids in group]
                for group in prompts
            ]
        _drop_from_memory(Path(folder))
        async with _warm_server(chosen) as target:
            disk = [[await _known_s(target, ids) for ids in group] for group in prompts]
    return [
        CacheResult(
            tokens,
            cold_s=statistics.median(cold_s for cold_s, _ in times),
            memory_s=statistics.median(memory_s for _, memory_s in times),
            disk_s=statistics.median(disk_s),
        )
        for tokens, times, disk_s in zip(plan.tokens, first, disk, strict=True)
    ]


@asynccontextmanager
async def _warm_server(settings: Settings) -> AsyncIterator[Target]:
    """One whose first request, which is slower than others, is over."""
    async with server_process(settings) as url:
        target = Target.parse(url)
        await _answer_s(target, [TOKEN_IDS[0]] * 100, None)
        yield target


async def _known_s(target: Target, token_ids: Sequence[int]) -> float:
    """Of a prompt that all is known of that can be: its last token is computed again."""
    return await _answer_s(target, token_ids, len(token_ids) - 1)


async def _answer_s(target: Target, token_ids: Sequence[int], known: int | None) -> float:
    """How long an answer of one token takes, whose prompt's first ``known`` tokens are known."""
    began = perf_counter()
    async with await target.connect() as connection:
        asked = {"prompt": token_ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        await connection.send("POST", "/v1/completions", asked)
        body = json.loads(await connection.read_all())
    took = perf_counter() - began
    if connection.status != 200:
        raise ConfigError(f"{target.url}: {body['error']['message']}")
    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    if known is not None and cached != known:
        raise ConfigError(f"{cached} tokens of a prompt were cached, and not {known}")
    return took


def _drop_from_memory(folder: Path) -> None:
    """Let the files be read from the disk next: their pages are clean, since they were synced."""
    for file in folder.glob("segments/*.safetensors") if hasattr(os, "posix_fadvise") else ():
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cache_table(results: Sequence[CacheResult]) -> str:
    """For people. Times in milliseconds."""
    lines = [f"{'tokens':>7}{'cold':>9}{'memory':>9}{'disk':>9}{'disk/cold':>11}"]
    lines += [
        f"{r.tokens:>7,}{r.cold_s * 1000:>9,.0f}{r.memory_s * 1000:>9,.0f}"
        f"{r.disk_s * 1000:>9,.0f}{f'1/{r.gain:.1f}':>11}"
        for r in results
    ]
    lines.append("milliseconds to the first token, medians")
    return "\n".join(lines)
