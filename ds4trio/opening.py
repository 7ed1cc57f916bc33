"""A service, from the settings that say what it is to be."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ds4trio.cache.disk import open_disk_cache
from ds4trio.cache.disk_writer import FLUSH_S
from ds4trio.chat.load import load_chat_format
from ds4trio.config import Settings
from ds4trio.constraint.grammar import GrammarCompiler
from ds4trio.constraint.vocabulary import Vocabulary
from ds4trio.engine import engine as core
from ds4trio.service import Service
from ds4trio.store.resolve import resolve_model
from ds4trio.text.load import load_tokenizer
from ds4trio.threads import run_off_loop, thread_beside

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ds4trio.cache.disk import DiskCache
    from ds4trio.models.base import CausalLM


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Find, load and hold the model that ``settings`` name.

    Raises: LoadError, ConfigError; EngineFailed, in a group, if the worker dies while the block
        runs.
    """
    found = await run_off_loop(resolve_model, settings.model)
    tokenizer = await run_off_loop(load_tokenizer, found.path)
    chat = await run_off_loop(
        partial(load_chat_format, prompt_contract=settings.prompt_contract), found.path, tokenizer
    )
    visible = chat.format.visible_tokens if chat.format else ()
    vocabulary = await run_off_loop(Vocabulary, tokenizer, visible)
    async with (
        _open_disk_cache(found.path, settings) as disk,
        core.open_engine(
            partial(_load, found.path, settings),
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            prefill_chunk_tokens=settings.prefill_chunk_tokens,
            prefill_target_s=settings.prefill_target_s,
            threads=settings.threads,
            kv_budget_bytes=settings.kv_budget_bytes,
            prefix_cache=settings.prefix_cache,
            open_store=disk.store if disk else lambda _: None,
        ) as engine,
    ):
        name = settings.served_model_name or found.name
        yield Service(
            name,
            engine,
            tokenizer,
            chat.format,
            chat.stop_ids,
            GrammarCompiler(vocabulary),
            vocabulary.longest_token_bytes,
            chat.told,
            disk.stats if disk else None,
        )


def open_engine(
    model: str | None = None, settings: Settings | None = None
) -> AbstractAsyncContextManager[Service]:
    """The engine for a Trio program: ``async with ds4trio.open_engine("name") as engine: ...``.

    ``model`` is a name, a folder, a .gguf file or a hub name; ``settings`` holds all else.
    Several may be open in one process. Raises: as `open_service`.
    """
    chosen = settings or Settings()
    return open_service(chosen if model is None else replace(chosen, model=model))


@asynccontextmanager
async def _open_disk_cache(source: Path, settings: Settings) -> AsyncIterator[DiskCache | None]:
    """What ``cache_dir`` asks for. Raises: ConfigError if it cannot be used."""
    if settings.cache_dir is None:
        yield None
        return
    disk = await run_off_loop(
        partial(
            open_disk_cache,
            numbers=f"{settings.dtype}, release numerics {settings.simulate_release_numerics}",
            budget_bytes=settings.cache_disk_bytes,
            keep_token_ids=settings.cache_token_ids,
        ),
        settings.cache_dir,
        source,
    )
    writer = disk.writer
    async with thread_beside(writer.run, writer.stop, name="ds4trio-cache", patience_s=2 * FLUSH_S):
        yield disk


def _load(source: Path, settings: Settings) -> CausalLM:
    """Runs on: worker, which alone may touch torch."""
    from ds4trio.models.options import ModelOptions
    from ds4trio.models.registry import load_model

    return load_model(
        source,
        dtype=settings.dtype,
        device=settings.device,
        context_tokens=settings.context_tokens,
        options=ModelOptions(
            experts=settings.experts,
            experts_hot_bytes=settings.experts_hot_bytes,
            simulate_release_numerics=settings.simulate_release_numerics,
            speculative_tokens=settings.speculative_tokens,
        ),
    )
