"""Checkpoints that are wrong, and settings: one line that names the tensor or the setting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from v4_checkpoints import RELEASE, Release, make_checkpoint, prompt, variants, write_release

from ds4trio.errors import LoadError
from ds4trio.models.base import Chunk
from ds4trio.models.config_fields import ConfigFields, read_json_object
from ds4trio.models.deepseek_v4.config import DeepseekV4Config, read_config
from ds4trio.models.deepseek_v4.model import DeepseekV4Model
from ds4trio.models.registry import load_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def release() -> Tensors:
    return Release().tensors


def load_error(folder: Path) -> str:
    with pytest.raises(LoadError) as caught:
        load_model(folder, device="cpu")
    text = str(caught.value)
    assert str(folder) in text
    assert "\n" not in text
    return text


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        tensors[name] = change(tensors[name])

    return apply


def missing(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def extra(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, torch.zeros(2))


def as_int(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int64)


WRONG: dict[str, tuple[Callable[[Tensors], None], str, str]] = {
    "missing": (missing("layers.1.attn.wkv.weight"), "layers.1.attn.wkv.weight", "missing"),
    "missing-scale": (missing("layers.3.attn.wq_b.scale"), "layers.3.attn.wq_b.scale", "missing"),
    "missing-expert": (
        missing("layers.2.ffn.experts.4.w2.weight"),
        "layers.2.ffn.experts.4.w2.weight",
        "missing",
    ),
    "missing-expert-scale": (
        missing("layers.2.ffn.experts.4.w2.scale"),
        "layers.2.ffn.experts.4.w2.scale",
        "missing",
    ),
    "missing-mtp": (missing("mtp.0.enorm.weight"), "mtp.0.enorm.weight", "missing"),
    "extra": (extra("layers.0.attn.wq_c.weight"), "layers.0.attn.wq_c.weight", "no such tensor"),
    "extra-layer": (extra("layers.4.attn_norm.weight"), "layers.4.attn_norm.weight", "no such"),
    "extra-bias-of-hashed": (extra("layers.0.ffn.gate.bias"), "layers.0.ffn.gate.bias", "no such"),
    "extra-compressor": (
        extra("layers.0.attn.compressor.ape"),
        "layers.0.attn.compressor.ape",
        "no such tensor",
    ),
    "shape": (
        changed("layers.0.attn.q_norm.weight", lambda t: t[:-1]),
        "layers.0.attn.q_norm.weight",
        "has shape [63], expected [64]",
    ),
    "shape-of-fp8": (
        changed("layers.0.attn.wo_a.weight", lambda t: t.view(torch.int8)[:, :64].view(t.dtype)),
        "layers.0.attn.wo_a.weight",
        "has shape [256, 64], expected [256, 128]",
    ),
    "shape-of-scale": (
        changed("layers.0.attn.wo_a.scale", lambda t: t.view(torch.int8)[:1].view(t.dtype)),
        "layers.0.attn.wo_a.scale",
        "has shape [1, 1], expected [2, 1]",
    ),
    "shape-of-fp4": (
        changed("layers.2.ffn.experts.0.w1.weight", lambda t: t[:, :-1]),
        "layers.2.ffn.experts.0.w1.weight",
        "has shape [64, 63], expected [64, 64]",
    ),
    "type-of-norm": (
        changed("norm.weight", as_int),
        "norm.weight",
        "has type I64, expected BF16 or F16 or F32",
    ),
    "type-of-matrix": (changed("layers.0.attn.wkv.weight", as_int), "layers.0.attn.wkv", "I64"),
    "type-of-scale": (
        changed("layers.0.attn.wkv.scale", lambda t: t.view(torch.uint8)),
        "layers.0.attn.wkv.scale",
        "has type U8, expected F32 or F8_E8M0",
    ),
    "type-of-table": (
        changed("layers.1.ffn.gate.tid2eid", lambda t: t.to(torch.float32)),
        "layers.1.ffn.gate.tid2eid",
        "has type F32, expected I32 or I64",
    ),
    "expert-not-there": (
        changed("layers.1.ffn.gate.tid2eid", lambda t: t + 1),
        "layers.1.ffn.gate.tid2eid",
        "names an expert not there",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor_is_named(tmp_path: Path, release: Tensors, case: str) -> None:
    apply, name, what = WRONG[case]
    tensors = dict(release)
    apply(tensors)
    write_release(tmp_path, tensors)
    text = load_error(tmp_path)
    assert name in text
    assert what in text


def test_a_tensor_missing_from_transformers_format_is_named_in_its_spelling(
    tmp_path: Path,
) -> None:
    config = variants()["sparse"]
    make_checkpoint(config, tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text())
    settings["layer_types"] = ["sliding_attention", "compressed_sparse_attention"]
    path.write_text(json.dumps(settings))
    assert "model.layers.0.self_attn.compressor." in load_error(tmp_path)
    settings["layer_types"] = ["heavily_compressed_attention", "compressed_sparse_attention"]
    path.write_text(json.dumps(settings))
    assert "model.layers.0.self_attn.compressor.kv_proj.weight" in load_error(tmp_path)


def loaded(folder: Path) -> DeepseekV4Model:
    model = load_model(folder, device="cpu")
    assert isinstance(model, DeepseekV4Model)
    return model


def test_what_is_not_the_layer_of_token_prediction_is_set_aside(
    tmp_path: Path, release: Tensors
) -> None:
    """A drafter of another make under its prefix; and a model saved without."""
    ids = prompt(20)
    write_release(tmp_path / "whole", release)
    whole = loaded(tmp_path / "whole")
    assert whole.weights.mtp is not None
    expected = whole.forward([Chunk(whole.new_state(), ids, 20)])
    without = {name: tensor for name, tensor in release.items() if not name.startswith("mtp.")}
    drafter = {"mtp.0.hc_head_fn": torch.zeros(2), "mtp.2.drafter.weight": torch.zeros(3)}
    for folder, tensors in (("drafter", without | drafter), ("without", without)):
        write_release(tmp_path / folder, tensors)
        model = loaded(tmp_path / folder)
        assert model.weights.mtp is None
        assert model.forward([Chunk(model.new_state(), ids, 20)]).equal(expected)


def test_weights_stay_compressed_and_mapped(tmp_path: Path, release: Tensors) -> None:
    write_release(tmp_path, release)
    model = loaded(tmp_path)
    block = model.weights.blocks[2]
    expert = block.experts.experts[0]
    # Half a byte a number, and a byte for 32 of them.
    assert expert.nbytes == 3 * (64 * 128 // 2 + 64 * 128 // 32)
    assert block.attention.output_down.nbytes == 256 * 128 + 2
    assert model.weights.embedding.dtype is torch.bfloat16


def fields(folder: Path, values: dict[str, Any]) -> ConfigFields:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return ConfigFields(path, read_json_object(path))


REFUSED: dict[str, dict[str, object]] = {
    "engram_layers": {"engram_layers": [3]},
    "hidden_act": {"hidden_act": "gelu"},
    "scoring_func": {"scoring_func": "softmax"},
    "num_key_value_heads": {"num_key_value_heads": 2},
    "n_shared_experts": {"n_shared_experts": 2},
    "norm_topk_prob": {"norm_topk_prob": False},
    "topk_method": {"topk_method": "greedy"},
    "tie_word_embeddings": {"tie_word_embeddings": True},
    "attention_bias": {"attention_bias": True},
    "o_groups": {"o_groups": 3},
    "num_experts_per_tok": {"num_experts_per_tok": 6},
    "qk_rope_head_dim": {"qk_rope_head_dim": 65},
    "index_head_dim": {"index_head_dim": 16},
    "compress_ratios": {"compress_ratios": [0, 4]},
    "compress_ratios.1": {"compress_ratios": [0, 1, 4, 4]},
    "swiglu_limit": {"swiglu_limit": 0},
    "sliding_window": {"sliding_window": None},
    "rope_scaling.type": {"rope_scaling": {"type": "linear", "factor": 2}},
    "rope_scaling.original_max_position_embeddings": {
        "rope_scaling": {"type": "yarn", "factor": 2}
    },
    "quantization_config.quant_method": {"quantization_config": {"quant_method": "awq"}},
    "quantization_config.weight_block_size": {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}
    },
    "num_nextn_predict_layers": {"num_nextn_predict_layers": -1},
}


@pytest.mark.parametrize("setting", REFUSED)
def test_settings_that_are_not_implemented_are_refused_by_name(
    tmp_path: Path, setting: str
) -> None:
    with pytest.raises(LoadError, match=rf"config\.json: {setting}: ") as caught:
        read_config(fields(tmp_path, {**RELEASE, **REFUSED[setting]}), None)
    assert "\n" not in str(caught.value)


def test_both_sets_of_names_say_the_same(tmp_path: Path) -> None:
    """The release's settings, and what transformers makes of them."""
    ours = read_config(fields(tmp_path, RELEASE), None)
    make_checkpoint_config(tmp_path)
    theirs = read_json_object(tmp_path / "config.json")
    assert "compress_ratios" not in theirs
    assert "rope_scaling" not in theirs
    found = read_config(ConfigFields(tmp_path / "config.json", theirs), None)
    assert found == ours
    assert isinstance(found, DeepseekV4Config)


def make_checkpoint_config(folder: Path) -> None:
    from transformers import DeepseekV4Config as TheirConfig

    TheirConfig.from_dict({**RELEASE}).save_pretrained(folder)


def test_context_is_the_models_own_or_less(tmp_path: Path) -> None:
    config = fields(tmp_path, RELEASE)
    assert read_config(config, None).context_tokens == RELEASE["max_position_embeddings"]
    assert read_config(config, 100).context_tokens == 100
    with pytest.raises(LoadError, match="context_tokens 321 is more than the model's 320"):
        read_config(config, 321)
