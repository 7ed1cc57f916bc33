"""Logits equal transformers', however a prompt is split and whoever shares the batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from v4_checkpoints import (
    CONTEXT,
    RELEASE,
    VOCABULARY,
    Release,
    make_checkpoint,
    needs_cuda,
    oracle,
    oracle_logits,
    prompt,
    variants,
    write_release,
)

from ds4trio.models.base import Chunk
from ds4trio.models.config_fields import ConfigFields, read_json_object
from ds4trio.models.deepseek_v4.load import load as load_family
from ds4trio.models.deepseek_v4.model import DeepseekV4Model
from ds4trio.models.options import ModelOptions
from ds4trio.models.registry import load_model
from ds4trio.models.weights import SafetensorsFolder, Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transformers import DeepseekV4ForCausalLM

pytestmark = pytest.mark.oracle
#: Five sliding windows, ten rows of sparse attention (of which five are seen), two of heavy.
LENGTH = 41
PROMPT = prompt(LENGTH)


@dataclass(frozen=True)
class Pair:
    """One checkpoint in both implementations, and the oracle's answer to ``PROMPT``."""

    ours: DeepseekV4Model
    theirs: DeepseekV4ForCausalLM
    expected: torch.Tensor


def load(folder: Path) -> DeepseekV4Model:
    model = load_model(folder, device="cpu")
    assert isinstance(model, DeepseekV4Model)
    return model


@pytest.fixture(scope="session")
def v4_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    made: dict[str, Pair] = {}

    def get(variant: str) -> Pair:
        if variant not in made:
            folder = tmp_path_factory.mktemp(variant)
            make_checkpoint(variants()[variant], folder)
            theirs = oracle(folder)
            made[variant] = Pair(load(folder), theirs, oracle_logits(theirs, PROMPT))
        return made[variant]

    return get


@pytest.fixture(params=sorted(variants()))
def pair(request: pytest.FixtureRequest, v4_pair: Callable[[str], Pair]) -> Pair:
    return v4_pair(request.param)


@pytest.fixture(scope="session")
def mixed(v4_pair: Callable[[str], Pair]) -> Pair:
    """Layers of every kind."""
    return v4_pair("mixed")


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def in_pieces(model: DeepseekV4Model, token_ids: list[int], cuts: Sequence[int]) -> torch.Tensor:
    """Every position's logits, the prompt cut before each of ``cuts``."""
    state = model.new_state()
    rows = [
        model.forward([Chunk(state, token_ids[a:b], b - a)])
        for a, b in pairwise((0, *cuts, len(token_ids)))
    ]
    assert state.length == len(token_ids)
    return torch.cat(rows)


def test_whole_prompt(pair: Pair) -> None:
    logits = pair.ours.forward([Chunk(pair.ours.new_state(), PROMPT, LENGTH)])
    assert logits.dtype is torch.float32
    assert_close(logits, pair.expected)


def test_token_by_token(pair: Pair) -> None:
    assert_close(in_pieces(pair.ours, PROMPT, range(1, LENGTH)), pair.expected)


def test_some_splits(pair: Pair) -> None:
    for cuts in ([1], [3, 4, 5], [15], [16], [17, 33], [8, 31, 32], [40]):
        assert_close(in_pieces(pair.ours, PROMPT, cuts), pair.expected)


def test_every_split_in_two(mixed: Pair) -> None:
    for cut in range(1, LENGTH):
        assert_close(in_pieces(mixed.ours, PROMPT, [cut]), mixed.expected)


def test_splits_in_three_about_the_windows_ends(mixed: Pair) -> None:
    for cuts in combinations((4, 7, 9, 16, 31), 2):
        assert_close(in_pieces(mixed.ours, PROMPT, cuts), mixed.expected)


def test_decoding_after_every_split(mixed: Pair) -> None:
    """A chunk, then single tokens up to the end of a few windows."""
    for cut in range(1, LENGTH - 6):
        cuts = range(cut, cut + 6)
        assert_close(in_pieces(mixed.ours, PROMPT[: cut + 6], cuts), mixed.expected[: cut + 6])


def test_up_to_the_end_of_the_context(pair: Pair) -> None:
    """Far positions tell the rotations apart, and the state has to grow several times."""
    long = prompt(CONTEXT, seed=1)
    assert_close(
        in_pieces(pair.ours, long, [70, 71, 72, 130, 319]), oracle_logits(pair.theirs, long)
    )


def test_a_batch_equals_each_alone(pair: Pair) -> None:
    model = pair.ours
    decoding, midway, fresh = model.new_state(), model.new_state(), model.new_state()
    model.forward([Chunk(decoding, PROMPT[:20], 0), Chunk(midway, PROMPT[:9], 0)])
    logits = model.forward(
        [
            Chunk(midway, PROMPT[9:33], 2),
            Chunk(decoding, PROMPT[20:21], 1),
            Chunk(fresh, PROMPT[:8], 0),
        ]
    )
    assert_close(logits, pair.expected[[31, 32, 20]])
    for step in range(1, 8):
        states = (decoding, midway, fresh)
        logits = model.forward([Chunk(state, PROMPT[state.length :][:1]) for state in states])
        assert_close(logits, pair.expected[[20 + step, 32 + step, 7 + step]])


@settings(max_examples=8)
@given(data=st.data())
def test_any_schedule(mixed: Pair, data: st.DataObject) -> None:
    """Sequences of one's own prompts, advanced in any chunks in any company."""
    model = mixed.ours
    prompts = [prompt(36, seed) for seed in range(3)]
    expected = [oracle_logits(mixed.theirs, ids) for ids in prompts]
    states = [model.new_state() for _ in prompts]
    while any(state.length < 36 for state in states):
        waiting = [index for index in range(3) if states[index].length < 36]
        chosen = data.draw(st.permutations(waiting))[: data.draw(st.integers(1, len(waiting)))]
        chunks, wanted = [], []
        for index in chosen:
            start = states[index].length
            size = data.draw(st.integers(1, 36 - start))
            rows = data.draw(st.integers(0, size))
            chunks.append(Chunk(states[index], prompts[index][start : start + size], rows))
            wanted.append(expected[index][start + size - rows : start + size])
        assert_close(model.forward(chunks), torch.cat(wanted))


def test_saved_and_restored_at_every_position(pair: Pair) -> None:
    """The restored continues as the uninterrupted does, to the bit; and neither disturbs it."""
    model = pair.ours
    state = model.new_state()
    whole, steps = [state.save(0)], [state.save(0)]
    alone = []
    for position, token_id in enumerate(PROMPT):
        alone.append(model.forward([Chunk(state, [token_id])]))
        whole.append(state.save(0))
        steps.append(state.save(position))
    for length in range(LENGTH):
        restored = model.new_state()
        restored.restore(steps[1 : length + 1] if length % 2 else [whole[length]], length)
        assert restored.length == length
        found = model.forward([Chunk(restored, [PROMPT[length]])])
        assert torch.equal(found, alone[length])
        if length % 8 == 0 and length + 1 < LENGTH:
            later = model.forward([Chunk(restored, PROMPT[length + 1 : LENGTH], 1)])
            assert_close(later, pair.expected[-1:])


def test_a_saved_state_of_another_kind_is_refused(v4_pair: Callable[[str], Pair]) -> None:
    mixed, heavy = v4_pair("mixed").ours, v4_pair("heavy").ours
    state = heavy.new_state()
    heavy.forward([Chunk(state, PROMPT)])
    saved = state.save(0)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in saved.items()}
    for model, length, tensors in (
        (mixed, LENGTH, saved),
        (heavy, LENGTH - 16, saved),
        (heavy, LENGTH, rounded),
    ):
        with pytest.raises(ValueError, match="another"):
            model.new_state().restore([tensors], length)


@pytest.mark.parametrize("native", [True, False])
def test_both_of_transformers_spellings(tmp_path: Path, native: bool) -> None:
    make_checkpoint(variants()["mixed"], tmp_path, native=native, shard="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    expected = oracle_logits(oracle(tmp_path), PROMPT)
    assert_close(in_pieces(load(tmp_path), PROMPT, [30]), expected)


@pytest.mark.parametrize("base", [False, True])
def test_the_release_format(tmp_path: Path, base: bool) -> None:
    """Compressed by 128 as well, over two windows of which and back to single tokens."""
    tensors = Release(base=base).tensors
    if base:
        quantization = {**RELEASE["quantization_config"], "scale_fmt": "float"}  # type: ignore[dict-item]  # RELEASE's values are any JSON
        write_release(tmp_path, tensors, expert_dtype=None, quantization_config=quantization)
    else:
        write_release(tmp_path, tensors)
    ids = prompt(300, seed=3)
    model = load(tmp_path)
    assert_close(
        in_pieces(model, ids, [100, 127, 128, 129, 255, 256, 257]),
        oracle_logits(oracle(tmp_path), ids),
    )
    assert model.weights.mtp is not None


def test_bfloat16_is_near(tmp_path: Path, v4_pair: Callable[[str], Pair]) -> None:
    """Where no router's choice is close: one expert, so that none can flip."""
    config = variants()["heavy"]
    config.n_routed_experts, config.num_experts_per_tok = 1, 1
    make_checkpoint(config, tmp_path)
    exact = load(tmp_path)
    model = load_model(tmp_path, dtype="bf16", device="cpu")
    logits = model.forward([Chunk(model.new_state(), PROMPT, LENGTH)])
    expected = exact.forward([Chunk(exact.new_state(), PROMPT, LENGTH)])
    assert logits.dtype is torch.float32
    # bf16 keeps 8 bits; a few layers lose a few of them.
    assert (logits - expected).norm() / expected.norm() < 0.05


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("home", ["device", "pinned", "mapped"])
def test_on_a_gpu(tmp_path: Path, home: Literal["device", "pinned", "mapped"]) -> None:
    """Every storage and every kind of layer, with experts at home and visiting."""
    write_release(tmp_path, Release().tensors)
    ids = prompt(150)
    expected = oracle_logits(oracle(tmp_path), ids)
    device = torch.device("cuda")
    weights = Weights(SafetensorsFolder(tmp_path), dtype=torch.float32, device=device)
    path = tmp_path / "config.json"
    config = ConfigFields(path, read_json_object(path))
    model = load_family(config, weights, None, ModelOptions(experts=home, experts_hot_bytes=20_000))
    assert_close(in_pieces(model, ids, [5, 6, 7, 120]).cpu(), expected)


def test_requests_beyond_the_model_are_refused(mixed: Pair) -> None:
    model = mixed.ours
    assert (model.vocab_size, model.context_tokens) == (VOCABULARY, CONTEXT)
    for ids, rows in (([VOCABULARY], 1), ([-1], 1), ([], 0), ([1], 2), ([1] * 321, 1)):
        state = model.new_state()
        with pytest.raises(ValueError, match=r"vocabulary|rows|context"):
            model.forward([Chunk(state, ids, rows)])
        assert state.length == 0
