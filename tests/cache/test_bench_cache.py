"""``ds4trio bench cache``, with a small model and servers in this process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
from tiny_llama import write_tiny_llama

import ds4trio
from ds4trio.bench import cache
from ds4trio.bench.cache import CachePlan, cache_table, cache_times
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def in_this_process(settings: ds4trio.Settings) -> AsyncIterator[str]:
    async with ds4trio.open_engine(settings=settings) as engine, trio.open_nursery() as nursery:
        (url,) = await nursery.start(ds4trio.serve, engine, replace(settings, port=0))
        yield url
        nursery.cancel_scope.cancel()


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ds4trio.Settings:
    monkeypatch.setattr(cache, "server_process", in_this_process)
    return ds4trio.Settings(model=str(write_tiny_llama(tmp_path / "model")), threads=1)


async def test_each_way_is_timed(chosen: ds4trio.Settings) -> None:
    results = await cache_times(chosen, CachePlan(tokens=(700, 70), repeats=2))
    assert [result.tokens for result in results] == [700, 70]
    for result in results:
        assert min(result.cold_s, result.memory_s, result.disk_s) > 0
        assert result.as_dict()["gain"] == result.cold_s / result.disk_s
    assert cache_table(results).splitlines()[1].split()[0] == "700"


async def test_a_figure_of_something_else_is_none(chosen: ds4trio.Settings) -> None:
    """Nothing is kept: no prompt could be found where it should be."""
    with pytest.raises(ExceptionGroup) as caught:
        await cache_times(replace(chosen, prefix_cache=False), CachePlan((70,), 1))
    assert caught.value.subgroup(ConfigError) is not None
