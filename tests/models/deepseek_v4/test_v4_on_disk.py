"""A DeepSeek V4's states outlive its engine: rows and tips come back from files as they were."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from v4_checkpoints import make_checkpoint, prompt, variants

from ds4trio.cache.disk import DiskCache, open_disk_cache
from ds4trio.engine.engine import open_engine
from ds4trio.engine.job import EngineRequest, TokenEvent, TokensEnded
from ds4trio.models.registry import load_model
from ds4trio.request import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.engine.job import JobReport

GREEDY = SamplingParams(temperature=0)


async def answer(
    folder: Path, token_ids: list[int], disk: DiskCache | None = None
) -> tuple[list[int], JobReport]:
    """Of an engine of its own. What it kept is written when it is gone."""
    load = partial(load_model, folder, dtype="fp32", device="cpu")
    said: list[int] = []
    async with (
        open_engine(
            load,
            threads=1,
            prefill_chunk_tokens=64,
            open_store=disk.store if disk else lambda _: None,
        ) as engine,
        engine.submit(EngineRequest(token_ids, sampling=GREEDY, max_tokens=12)) as stream,
    ):
        report = None
        while report is None:
            for event in await stream.receive():
                match event:
                    case TokenEvent():
                        said.append(event.token_id)
                    case TokensEnded():
                        report = event.report
    if disk is not None:
        disk.writer.work(disk.writer.inbox.take_ready())
    return said, report


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    make_checkpoint(variants()["mixed"], folder)
    first = prompt(265)
    said, _ = await answer(folder, first)
    disk = open_disk_cache(
        tmp_path / "cache", folder, numbers="", budget_bytes=10**9, keep_token_ids=False
    )
    assert (await answer(folder, first, disk))[0] == said
    longer = [*first, *said, *prompt(20, seed=1)]
    again, report = await answer(folder, first, disk)
    assert (again, report.cached_prompt_tokens) == (said, len(first) - 1)
    expected, _ = await answer(folder, longer)
    there = sum(file.stat().st_size for file in (tmp_path / "cache").glob("segments/*.safe*"))
    assert disk.stats.written_bytes == there  # nothing twice
    on, report = await answer(folder, longer, disk)
    assert on == expected
    assert report.cached_prompt_tokens >= len(first) + len(said) - 1
    assert disk.stats.hits == 2
