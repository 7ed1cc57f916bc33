"""A prefix on disk that makes the engine fail does so once, and not at every try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from disk_rig import Disk

from ds4trio.cache.disk_tensors import StateKind
from ds4trio.engine.engine import open_engine
from ds4trio.engine.job import EngineRequest, TokensEnded
from ds4trio.errors import Ds4TrioError, EngineFailed
from ds4trio.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ds4trio.cache.segment import SegmentStore
    from ds4trio.models.base import CausalLM, Chunk

PROMPT = list(range(1, 200))


class FailsOnRestored(ScriptedModel):
    """Cannot go on from a state that it did not compute itself: raises, or says no numbers."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        restored = any(chunk.state.length == len(PROMPT) - 1 for chunk in chunks)
        logits = super().forward(chunks)
        if restored and self._fault == "raises":
            raise RuntimeError("the device is gone")
        return logits.fill_(torch.nan) if restored else logits


async def answer(cache_dir: Path, model: ScriptedModel) -> int:
    """How much of the prompt was cached, in an engine of its own."""
    disks = []

    def open_store(loaded: CausalLM) -> SegmentStore:
        disks.append(Disk(cache_dir, kind=StateKind.of(loaded)))
        return disks[0].store

    try:
        async with (
            open_engine(lambda: model, open_store=open_store, threads=1) as engine,
            engine.submit(EngineRequest(PROMPT, max_tokens=1)) as stream,
        ):
            while True:
                for event in await stream.receive():
                    if isinstance(event, TokensEnded):
                        return event.report.cached_prompt_tokens
    finally:
        disks[0].write()


@pytest.mark.parametrize("fault", ["raises", "not a number"])
async def test_a_prefix_that_fails_is_dropped(tmp_path: Path, fault: str) -> None:
    assert await answer(tmp_path, ScriptedModel()) == 0
    assert await answer(tmp_path, ScriptedModel()) == len(PROMPT) - 1
    with pytest.raises(EngineFailed if fault == "raises" else Ds4TrioError):
        await answer(tmp_path, FailsOnRestored(fault))
    assert await answer(tmp_path, FailsOnRestored(fault)) == 0
