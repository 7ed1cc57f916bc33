"""A Llama that goes on from what the prefix cache kept computes what it would have anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_llama import write_tiny_llama

from ds4trio.cache.prefix import PrefixCache
from ds4trio.models.base import CausalLM, Chunk
from ds4trio.models.registry import load_model

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 60


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder: Path = tmp_path_factory.mktemp("llama")
    return load_model(write_tiny_llama(folder), dtype=request.param)


@given(
    ids=st.lists(st.integers(0, 255), min_size=LENGTH, max_size=LENGTH).map(tuple),
    borders=st.lists(st.integers(1, LENGTH - 2), min_size=1, max_size=6, unique=True).map(sorted),
    where=st.integers(0, 99),
    parted=st.integers(0, LENGTH - 1),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_restored_continues_as_the_uninterrupted(
    model: CausalLM, ids: tuple[int, ...], borders: list[int], where: int, parted: int
) -> None:
    """To the bit where the uninterrupted's chunks ended too; elsewhere up to rounding. A prompt
    that parts from it, and cuts what is kept in two, changes nothing.
    """
    cache = PrefixCache(model.state_layout)
    cache.resize(1 << 30)
    other = (*ids[:parted], (ids[parted] + 1) % 256, *ids[:9])
    stranger = model.new_state()
    model.forward([Chunk(stranger, other)])
    state = model.new_state()
    for start, stop in zip([0, *borders], borders, strict=False):
        model.forward([Chunk(state, ids[start:stop])])
        cache.insert(ids, state, LENGTH, at=0.0)
    cache.insert(other, stranger, LENGTH, at=0.0)
    end = borders[-1]
    uninterrupted = model.forward([Chunk(state, ids[end:], LENGTH - end)])

    most = 1 + where % (LENGTH - 2)
    for length in {end, min(most, end)}:
        match = cache.find(ids, length, at=0.0)
        assert match.length == length
        restored = model.new_state()
        restored.restore(match.pieces, match.length)
        found = model.forward([Chunk(restored, ids[length:], LENGTH - end)])
        if length == end:
            assert torch.equal(found, uninterrupted)
        else:
            loose = 0.1 if state.save(0)["kv"].dtype is torch.bfloat16 else 1e-4
            torch.testing.assert_close(found, uninterrupted, atol=loose, rtol=loose)
