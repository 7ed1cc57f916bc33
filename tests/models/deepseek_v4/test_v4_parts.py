"""Footprint, placement of experts, token prediction, rounding as the release rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.models.deepseek_v4 import modeling_deepseek_v4
from v4_checkpoints import (
    FLASH,
    PRO,
    RELEASE,
    Release,
    make_checkpoint,
    oracle,
    oracle_logits,
    prompt,
    variants,
    write_release,
)

from ds4trio.models.base import Chunk
from ds4trio.models.config_fields import ConfigFields, read_json_object
from ds4trio.models.deepseek_v4.config import read_config
from ds4trio.models.deepseek_v4.footprint import state_bytes, weights_footprint
from ds4trio.models.deepseek_v4.hyper_connection import sinkhorn
from ds4trio.models.deepseek_v4.load import load
from ds4trio.models.deepseek_v4.matrix import (
    Linear,
    PlainMatrix,
    fp4_round_trip,
    fp8_round_trip,
    hadamard,
)
from ds4trio.models.deepseek_v4.moe import Expert
from ds4trio.models.deepseek_v4.placement import (
    HotExperts,
    Placement,
    VisitingExperts,
    fitting,
    fitting_in,
)
from ds4trio.models.options import ModelOptions
from ds4trio.models.weights import SafetensorsFolder, Weights

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.models.deepseek_v4.model import DeepseekV4Model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("release")
    write_release(path, Release().tensors)
    return path


def loaded(folder: Path, **options: Any) -> DeepseekV4Model:
    path = folder / "config.json"
    weights = Weights(SafetensorsFolder(folder), dtype=torch.float32, device=CPU)
    config = ConfigFields(path, read_json_object(path))
    return load(config, weights, None, ModelOptions(**options))


@pytest.mark.parametrize(
    ("settings", "tensors", "billions"), [(FLASH, 69_187, 284.3), (PRO, 145_116, 1573.0)]
)
def test_the_release_has_as_many_tensors_as_its_index_lists(
    tmp_path: Path, settings: dict[str, Any], tensors: int, billions: float
) -> None:
    fields = ConfigFields(tmp_path, {**RELEASE, **settings})
    footprint = weights_footprint(read_config(fields, None))
    assert footprint.total.tensors == tensors
    without_mtp = footprint.shared + footprint.experts
    assert round(without_mtp.parameters / 1e9, 1) == billions


def test_weights_footprint_is_the_file(folder: Path) -> None:
    """To the byte, but for headers."""
    footprint = weights_footprint(
        read_config(ConfigFields(folder / "config.json", dict(RELEASE)), None)
    )
    tensors = Release().tensors
    assert footprint.total.tensors == len(tensors)
    assert footprint.total.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    mtp = [tensor.nbytes for name, tensor in tensors.items() if name.startswith("mtp.")]
    assert footprint.mtp.nbytes == sum(mtp)


def test_state_footprint_is_what_a_state_holds(folder: Path) -> None:
    model = loaded(folder)
    ids = prompt(320)
    assert model.new_state().nbytes == state_bytes(model.config, 0, 4)
    for tokens in (64, 257, 320):
        state = model.new_state()
        model.forward([Chunk(state, ids[:tokens], 0)])
        assert state.nbytes == state_bytes(model.config, tokens, 4)
    state = model.new_state()
    for start in range(0, 320, 20):
        model.forward([Chunk(state, ids[start : start + 20], 0)])
        assert state.nbytes <= state_bytes(model.config, 320, 4)
    assert state.nbytes == state_bytes(model.config, 320, 4)


def test_sinkhorn_ends_doubly_stochastic() -> None:
    logits = torch.randn((7, 4, 4), generator=torch.Generator().manual_seed(2))
    matrix = sinkhorn(logits, 20, 1e-6)
    for axis in (-1, -2):
        torch.testing.assert_close(matrix.sum(axis), torch.ones((7, 4)), atol=1e-3, rtol=0)
    assert (matrix > 0).all()


def small_expert(value: float) -> Expert:
    """48 bytes."""
    linear = Linear(PlainMatrix(torch.full((2, 2), value)))
    return Expert(linear, linear, linear, 10.0)


def test_hot_experts_make_room_for_each_other() -> None:
    hot = HotExperts(CPU, most_bytes=100)
    layers = [VisitingExperts(n, [small_expert(n + e / 10) for e in range(3)], hot) for n in (0, 1)]
    assert [len(layer) for layer in layers] == [3, 3]
    first = layers[0][0]
    assert layers[0][0] is first
    assert (hot.hits, hot.misses, hot.nbytes) == (1, 1, 48)
    second = layers[1][0]
    assert layers[0][0] is first  # used after the second, so the second goes
    layers[0][2]
    assert (hot.nbytes, layers[0][0]) == (96, first)
    assert layers[1][0] is not second
    assert layers[1][0].gate.matrix.expand(torch.float32)[0, 0] == 1.0


def test_an_expert_larger_than_the_room_is_not_kept() -> None:
    hot = HotExperts(CPU, most_bytes=47)
    layer = VisitingExperts(0, [small_expert(1.0)], hot)
    for _ in range(2):
        assert layer[0].gate.matrix.expand(torch.float32)[0, 0] == 1.0
    assert (hot.hits, hot.misses, hot.nbytes) == (0, 2, 0)


def test_as_many_experts_as_fit_go_to_the_device() -> None:
    reserved = 8 << 30
    assert fitting_in(1000, reserved + 1000) == Placement("device")
    assert fitting_in(1001, reserved + 1000) == Placement("mapped", 1000)
    assert fitting_in(1, 5) == Placement("mapped", 0)
    assert fitting(1 << 60, CPU) == Placement("device")


@pytest.mark.parametrize("hot_bytes", [0, 30_000, 1 << 30])
def test_experts_answer_alike_wherever_they_live(folder: Path, hot_bytes: int) -> None:
    ids = prompt(40)
    home = loaded(folder)
    away = loaded(folder, experts="mapped", experts_hot_bytes=hot_bytes)
    states = home.new_state(), away.new_state()
    for start in range(0, 40, 8):
        found, expected = (
            model.forward([Chunk(state, ids[start : start + 8], 8)])
            for model, state in zip((away, home), states, strict=True)
        )
        assert torch.equal(found, expected)


def test_rounding_as_the_release_does_changes_little_and_something(folder: Path) -> None:
    """And does not depend on how the prompt was split."""
    ids = prompt(150)
    exact = loaded(folder)
    rounded = loaded(folder, simulate_release_numerics=True)
    expected = exact.forward([Chunk(exact.new_state(), ids, 150)])
    whole = rounded.forward([Chunk(rounded.new_state(), ids, 150)])
    difference = (whole - expected).abs().mean()
    assert 0.001 < difference < 0.3
    state = rounded.new_state()
    pieces = [
        rounded.forward([Chunk(state, ids[a:b], b - a)])
        for a, b in ((0, 1), (1, 70), (70, 129), (129, 150))
    ]
    # A value between two codes may round either way, after sums in another order.
    assert (torch.cat(pieces) - whole).abs().mean() < difference / 4


def test_keys_are_rounded_where_the_release_rounds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle's, right after it turned them: of the window, pooled, and the indexer's."""
    make_checkpoint(variants()["mixed"], tmp_path)
    turn = modeling_deepseek_v4.apply_rotary_pos_emb

    def turn_and_round(
        x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> torch.Tensor:
        turned: torch.Tensor = turn(x, cos, sin, unsqueeze_dim)
        match (turned.shape[1], turned.shape[-1]):
            case (1, 24):  # keys, window's and pooled, of which 8 features turn
                return torch.cat((fp8_round_trip(turned[..., :16], 64), turned[..., 16:]), -1)
            case (1, 16) | (32, 16):  # the indexer's keys, and its queries of 32 heads
                return fp4_round_trip(hadamard(turned), 32)
            case _:
                return turned

    ids = prompt(41)
    model = loaded(tmp_path, simulate_release_numerics=True)
    found = model.forward([Chunk(model.new_state(), ids, 41)])
    theirs = oracle(tmp_path)
    exact = oracle_logits(theirs, ids)
    monkeypatch.setattr(modeling_deepseek_v4, "apply_rotary_pos_emb", turn_and_round)
    rounded = oracle_logits(theirs, ids)
    assert (rounded - exact).abs().mean() > 0.01
    # Where a value lies between two codes, sums in another order may round it the other way.
    assert (found - rounded).abs().mean() < 1e-3
