"""Logits equal transformers', however a prompt is split and whoever shares the batch."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from checkpoints import VOCABULARY, checkpoint, needs_cuda, oracle, oracle_logits, prompt, variants
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.models.base import CausalLM, Chunk
from ds4trio.models.registry import load_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

pytestmark = pytest.mark.oracle
LENGTH = 22
PROMPT = prompt(LENGTH)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def in_pieces(model: CausalLM, token_ids: list[int], cuts: Sequence[int]) -> torch.Tensor:
    """Every position's logits, the prompt cut before each of ``cuts``."""
    state = model.new_state()
    rows = [
        model.forward([Chunk(state, token_ids[a:b], b - a)])
        for a, b in pairwise((0, *cuts, len(token_ids)))
    ]
    assert state.length == len(token_ids)
    return torch.cat(rows)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Matrices this small are only slowed by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Pair:
    """One checkpoint in both implementations, and the oracle's answer to ``PROMPT``."""

    def __init__(self, folder: Path) -> None:
        self.ours = load_model(folder, dtype="fp32", device="cpu")
        self.theirs: PreTrainedModel = oracle(folder)
        self.expected = oracle_logits(self.theirs, PROMPT)


@pytest.fixture(scope="module", params=sorted(variants()))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(checkpoint(tmp_path_factory, request.param))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(checkpoint(tmp_path_factory, "smollm2"))


def test_whole_prompt(pair: Pair) -> None:
    logits = pair.ours.forward([Chunk(pair.ours.new_state(), PROMPT, LENGTH)])
    assert logits.dtype is torch.float32
    assert_close(logits, pair.expected)


def test_every_split_in_two(pair: Pair) -> None:
    for cut in range(1, LENGTH):
        assert_close(in_pieces(pair.ours, PROMPT, [cut]), pair.expected)


def test_some_splits_in_three(pair: Pair) -> None:
    for cuts in combinations((1, 2, 7, 15, 21), 2):
        assert_close(in_pieces(pair.ours, PROMPT, cuts), pair.expected)


def test_token_by_token(pair: Pair) -> None:
    assert_close(in_pieces(pair.ours, PROMPT, range(1, LENGTH)), pair.expected)


def test_up_to_the_end_of_the_context(pair: Pair) -> None:
    """Far positions tell scaled rotations apart, and the state has to grow several times."""
    long = prompt(256, seed=1)
    assert_close(
        in_pieces(pair.ours, long, [70, 71, 72, 130, 255]), oracle_logits(pair.theirs, long)
    )


def test_prefill_and_decode_share_a_batch(pair: Pair) -> None:
    model = pair.ours
    decoding, midway, fresh = model.new_state(), model.new_state(), model.new_state()
    model.forward([Chunk(decoding, PROMPT[:20], 0), Chunk(midway, PROMPT[:9], 0)])
    logits = model.forward(
        [
            Chunk(midway, PROMPT[9:14], 2),
            Chunk(decoding, PROMPT[20:21], 1),
            Chunk(fresh, PROMPT[:8], 0),
        ]
    )
    assert_close(logits, pair.expected[[12, 13, 20]])
    logits = model.forward([Chunk(s, PROMPT[s.length :][:1]) for s in (decoding, midway, fresh)])
    assert_close(logits, pair.expected[[21, 14, 8]])


@settings(max_examples=40)
@given(data=st.data())
def test_any_schedule(smollm2: Pair, data: st.DataObject) -> None:
    """Sequences of one's own prompts, advanced in any chunks in any company."""
    model = smollm2.ours
    prompts = [prompt(12, seed) for seed in range(3)]
    expected = [oracle_logits(smollm2.theirs, ids) for ids in prompts]
    states = [model.new_state() for _ in prompts]
    while any(state.length < 12 for state in states):
        waiting = [index for index in range(3) if states[index].length < 12]
        chosen = data.draw(st.permutations(waiting))[: data.draw(st.integers(1, len(waiting)))]
        chunks, wanted = [], []
        for index in chosen:
            start = states[index].length
            size = data.draw(st.integers(1, 12 - start))
            rows = data.draw(st.integers(0, size))
            chunks.append(Chunk(states[index], prompts[index][start : start + size], rows))
            wanted.append(expected[index][start + size - rows : start + size])
        assert_close(model.forward(chunks), torch.cat(wanted))


def test_bfloat16_is_near(tmp_path_factory: pytest.TempPathFactory, smollm2: Pair) -> None:
    model = load_model(checkpoint(tmp_path_factory, "smollm2"), dtype="bf16", device="cpu")
    logits = model.forward([Chunk(model.new_state(), PROMPT, LENGTH)])
    assert logits.dtype is torch.float32
    # bf16 keeps 8 bits; a few layers lose a few of them.
    assert (logits - smollm2.expected).norm() / smollm2.expected.norm() < 0.05


@pytest.mark.gpu
@needs_cuda
def test_on_a_gpu(
    pair: Pair, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    variant = request.node.callspec.params["pair"]
    model = load_model(checkpoint(tmp_path_factory, variant), dtype="fp32", device="cuda")
    for cuts in ([], [9], range(1, LENGTH)):
        assert_close(in_pieces(model, PROMPT, cuts).cpu(), pair.expected)


def test_requests_beyond_the_model_are_refused(smollm2: Pair) -> None:
    model = smollm2.ours
    for token_ids, rows in (([VOCABULARY], 1), ([-1], 1), ([], 0), ([1], 2), ([1] * 257, 1)):
        state = model.new_state()
        with pytest.raises(ValueError, match=r"vocabulary|rows|context"):
            model.forward([Chunk(state, token_ids, rows)])
        assert state.length == 0


def test_a_state_grows_by_doubling(smollm2: Pair) -> None:
    model = smollm2.ours
    state = model.new_state()
    assert (state.length, state.nbytes) == (0, 0)
    sizes = []
    for _ in range(256):
        model.forward([Chunk(state, [5], 0)])
        sizes.append(state.nbytes)
    a_token = 3 * 2 * 2 * 8 * 4  # layers, keys and values, heads, features, bytes
    assert sorted(set(sizes)) == [64 * a_token, 128 * a_token, 256 * a_token]
