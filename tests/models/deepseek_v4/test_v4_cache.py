"""A DeepSeek V4 that goes on from what the prefix cache kept computes what it would have anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from v4_checkpoints import VOCABULARY, make_checkpoint, prompt, variants

from ds4trio.cache.prefix import PrefixCache
from ds4trio.models.base import CausalLM, Chunk
from ds4trio.models.registry import load_model

if TYPE_CHECKING:
    from pathlib import Path

#: Longer than a window, than two of the wide compressor's, and than the index picks from.
LENGTH = 60
PROMPT = tuple(prompt(LENGTH, seed=3))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder: Path = tmp_path_factory.mktemp("mixed")
    make_checkpoint(variants()["mixed"], folder)
    return load_model(folder, dtype="fp32", device="cpu")


@given(
    borders=st.lists(st.integers(1, LENGTH - 2), min_size=1, max_size=5, unique=True).map(sorted),
    parted=st.integers(0, LENGTH - 1),
    most=st.integers(1, LENGTH - 1),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_restored_continues_as_the_uninterrupted(
    model: CausalLM, borders: list[int], parted: int, most: int
) -> None:
    """To the bit, from the last place that was kept and no later. A prompt that parts from it, and
    cuts what is kept in two, changes nothing.
    """
    cache = PrefixCache(model.state_layout)
    cache.resize(1 << 30)
    state = model.new_state()
    rest = {}
    for start, stop in zip([0, *borders], [*borders, LENGTH], strict=True):
        logits = model.forward([Chunk(state, PROMPT[start:stop], stop - start)])
        rest[start] = logits
        if stop < LENGTH:
            cache.insert(PROMPT, state, LENGTH, at=0.0)
    other = (*PROMPT[:parted], (PROMPT[parted] + 1) % VOCABULARY, *PROMPT[:9])
    stranger = model.new_state()
    model.forward([Chunk(stranger, other)])
    cache.insert(other, stranger, LENGTH, at=0.0)

    match = cache.find(PROMPT, most, at=0.0)
    assert match.length == max([place for place in borders if place <= most], default=0)
    if match.length:
        restored = model.new_state()
        restored.restore(match.pieces, match.length)
        stop = min([place for place in borders if place > match.length], default=LENGTH)
        chunk = Chunk(restored, PROMPT[match.length : stop], stop - match.length)
        assert torch.equal(model.forward([chunk]), rest[match.length])
