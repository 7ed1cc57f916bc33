"""The cache's folder under a whole engine: what a restart finds, and what a bad folder does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file
from tiny_llama import write_tiny_llama

import ds4trio
from ds4trio.errors import ConfigError
from ds4trio.request import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.events import Usage

GREEDY = SamplingParams(temperature=0)
#: A conversation of about a thousand tokens; every letter is one.
SAID = "It was a dark and stormy night; the rain fell in torrents. " * 17


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_tiny_llama(tmp_path / "model"))


async def answer(service: ds4trio.Service, said: str) -> tuple[str, Usage]:
    text = ""
    async with service.complete(said, max_tokens=12, sampling=GREEDY) as reply:
        async for event in reply:
            match event:
                case ds4trio.TextDelta():
                    text += event.text
                case ds4trio.Finished():
                    return text, event.usage
    raise AssertionError


async def test_a_restart_goes_on_where_it_was(tmp_path: Path, model: str) -> None:
    settings = ds4trio.Settings(model=model, cache_dir=tmp_path / "cache", threads=1)
    async with ds4trio.open_engine(model, ds4trio.Settings(threads=1)) as service:
        expected, usage = await answer(service, SAID)
        longer, _ = await answer(service, SAID + "And")
        assert service.disk_stats is None
    async with ds4trio.open_engine(settings=settings) as service:
        assert (await answer(service, SAID))[0] == expected
    async with ds4trio.open_engine(settings=settings) as service:
        text, again = await answer(service, SAID + "And")
        assert service.disk_stats is not None
        assert service.disk_stats.hits == 1
        assert service.disk_stats.folder_bytes > 0
    assert text == longer
    assert usage.cached_prompt_tokens == 0
    assert again.cached_prompt_tokens == usage.prompt_tokens


async def test_ten_turns_are_written_once(tmp_path: Path, model: str) -> None:
    settings = ds4trio.Settings(model=model, cache_dir=tmp_path / "cache", threads=1)
    said = SAID[:100]
    async with ds4trio.open_engine(settings=settings) as service:
        for turn in range(10):
            text, usage = await answer(service, said)
            said += f"{text} And in turn {turn}, " + SAID[:100]
        stats = service.disk_stats
    assert stats is not None
    rows = [load_file(file)["kv"] for file in (tmp_path / "cache").glob("segments/*.safetensors")]
    # Each token of the conversation once; the last answer's last token was not computed.
    assert sum(row.shape[-2] for row in rows) == usage.prompt_tokens + usage.generated_tokens - 1
    assert stats.written_bytes == stats.folder_bytes < 1.2 * sum(row.nbytes for row in rows)


async def test_a_damaged_folder_changes_no_answer(tmp_path: Path, model: str) -> None:
    settings = ds4trio.Settings(model=model, cache_dir=tmp_path / "cache", threads=1)
    async with ds4trio.open_engine(settings=settings) as service:
        expected, _ = await answer(service, SAID)
    for file in (tmp_path / "cache").glob("segments/*.safetensors"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    async with ds4trio.open_engine(settings=settings) as service:
        text, usage = await answer(service, SAID)
        assert (text, usage.cached_prompt_tokens) == (expected, 0)


async def test_a_folder_that_cannot_be_used(tmp_path: Path, model: str) -> None:
    (tmp_path / "file").touch()
    settings = ds4trio.Settings(model=model, cache_dir=tmp_path / "file" / "cache")
    with pytest.raises(ConfigError, match=r"^cache_dir: .*/file/cache: Not a directory$"):
        async with ds4trio.open_engine(settings=settings):
            pass
