"""GGUF files as llama.cpp's converter writes them, against the same weights in transformers."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch
from checkpoints import checkpoint, oracle, oracle_logits, prompt
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.errors import LoadError
from ds4trio.models.base import Chunk
from ds4trio.models.gguf import GgufFile
from ds4trio.models.registry import load_model

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from transformers import PreTrainedModel

PROMPT = prompt(30)
_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}


def permuted(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Halves of each head interleaved, as llama.cpp's rotary embedding wants its Llama rows."""
    head_dim = len(weights) // heads
    order = [
        head * head_dim + half * (head_dim // 2) + pair
        for head in range(heads)
        for pair in range(head_dim // 2)
        for half in range(2)
    ]
    return weights[order]


def llama3_factors(config: dict[str, float], head_dim: int) -> npt.NDArray[np.float32]:
    """Meta's rule, wave length by wave length."""
    factors = []
    for i in range(0, head_dim, 2):
        wave = 2 * math.pi * config["rope_theta"] ** (i / head_dim)
        original, factor = config["original_max_position_embeddings"], config["factor"]
        low, high = config["low_freq_factor"], config["high_freq_factor"]
        if wave < original / high:
            factors.append(1.0)
        elif wave > original / low:
            factors.append(factor)
        else:
            smooth = (original / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def add_setting(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    match value:
        case str():
            writer.add_string(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case _:
            raise TypeError(name)


def write_gguf(path: Path, model: PreTrainedModel, **settings: object) -> None:
    """``settings`` are added to the metadata, below the architecture's name."""
    config = model.config
    architecture = config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_token_list(["a", "b", "ü"])
    if architecture == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for name, value in settings.items():
        add_setting(writer, f"{architecture}.{name}", value)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config.rope_parameters, 8))
    names = gguf.get_tensor_name_map(_ARCHITECTURES[architecture], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if architecture == "llama" and "q_proj" in name:
            values = permuted(values, config.num_attention_heads)
        if architecture == "llama" and "k_proj" in name:
            values = permuted(values, config.num_key_value_heads)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, oracle(checkpoint(tmp_path_factory, "smollm2")))
    return path


def logits(path: Path) -> torch.Tensor:
    model = load_model(path, device="cpu")
    return model.forward([Chunk(model.new_state(), PROMPT, len(PROMPT))])


@pytest.mark.oracle
@pytest.mark.parametrize("variant", ["smollm2", "llama2", "llama3", "biases", "qwen2", "qwen3"])
def test_logits_are_transformers(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, variant: str
) -> None:
    model = oracle(checkpoint(tmp_path_factory, variant))
    write_gguf(tmp_path / "model.gguf", model)
    found = logits(tmp_path / "model.gguf")
    torch.testing.assert_close(found, oracle_logits(model, PROMPT), atol=1e-4, rtol=0)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("linear", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("linear", {"rope.scaling.factor": 4.0}),
        (
            "yarn",
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64,
            },
        ),
    ],
)
def test_rope_scaling(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    variant: str,
    settings: dict[str, object],
) -> None:
    model = oracle(checkpoint(tmp_path_factory, variant))
    write_gguf(tmp_path / "model.gguf", model, **settings)
    found = logits(tmp_path / "model.gguf")
    torch.testing.assert_close(found, oracle_logits(model, PROMPT), atol=1e-4, rtol=0)


def test_tensors_are_the_safetensors(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = GgufFile(tiny)
    expected = oracle(checkpoint(tmp_path_factory, "smollm2")).state_dict()
    del expected["lm_head.weight"]
    assert set(file.names) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(file.tensor(name), tensor.numpy())
        assert file.shape(name) == tuple(tensor.shape)


def test_metadata_and_config(tiny: Path) -> None:
    file = GgufFile(tiny)
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b", "ü"]
    assert file.metadata["llama.block_count"] == 3
    assert file.config["tie_word_embeddings"] is True
    assert file.config["head_dim"] == 8
    assert file.config["vocab_size"] == 97
    assert (file.config["bos_token_id"], file.config["eos_token_id"]) == (1, 2)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0])
def test_quantised(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Each value within half a step of the 4 or 8 bits it was rounded to."""
    values = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    path = tmp_path / "model.gguf"
    writer = minimal_writer(path)
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(values, kind), raw_dtype=kind)
    close(writer)
    found = GgufFile(path).tensor("model.layers.0.mlp.up_proj.weight")
    assert found.shape == (64, 64)
    np.testing.assert_allclose(found, values, atol=0.005)


def minimal_writer(path: Path, architecture: str = "llama") -> gguf.GGUFWriter:
    """A file that is complete but for its layers' tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((10, 64), dtype=np.float32))
    return writer


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def refusal(path: Path) -> str:
    with pytest.raises(LoadError) as caught:
        GgufFile(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert "\n" not in caught.value.message
    return caught.value.message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("expert_count", 8, "llama.expert_count: 8 is not supported"),
        ("attention.sliding_window", 32, "llama.attention.sliding_window: 32 is not supported"),
        ("attention.value_length", 8, "llama.attention.value_length: 8 differs from the size of"),
        ("rope.dimension_count", 8, "llama.rope.dimension_count: 8 differs from the size of a"),
        ("rope.scaling.type", "longrope", "llama.rope.scaling.type: 'longrope' is not supported"),
        ("rope.scaling.attn_factor", 2.0, "llama.rope.scaling.attn_factor: 2.0 is not supported"),
        ("rope.freq_base", "x", "llama.rope.freq_base: 'x' is not a number"),
        ("attention.head_count_kv", "x", "llama.attention.head_count_kv: 'x' is not a whole"),
    ],
)
def test_unsupported_settings(tmp_path: Path, name: str, value: object, message: str) -> None:
    path = tmp_path / "model.gguf"
    writer = minimal_writer(path)
    add_setting(writer, f"llama.{name}", value)
    close(writer)
    assert refusal(path).startswith(message)


def test_unknown_architecture(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    close(minimal_writer(path, "gemma3"))
    assert refusal(path).startswith("general.architecture: 'gemma3' is not supported")


def test_missing_setting(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((10, 64), dtype=np.float32))
    close(writer)
    assert refusal(path) == "llama.embedding_length: missing"


def test_unmapped_tensor(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = minimal_writer(path)
    writer.add_tensor("blk.0.attn_sinks.weight", np.zeros(4, dtype=np.float32))
    close(writer)
    assert refusal(path) == "blk.0.attn_sinks.weight: no such tensor is known in a llama model"


def test_unsupported_quantisation(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = minimal_writer(path)
    writer.add_tensor("output_norm.weight", np.zeros(64, dtype=np.int8))
    close(writer)
    file = GgufFile(path)
    with pytest.raises(LoadError, match=r"output_norm.weight: quantisation I8 is not supported"):
        file.tensor("model.norm.weight")


def test_several_parts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = minimal_writer(path)
    writer.add_uint16("split.count", 2)
    close(writer)
    assert refusal(path) == "split.count: a file in several parts is not supported"


def test_missing_and_misshapen_tensors_are_called_by_the_files_own_names(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = minimal_writer(path)
    writer.add_tensor("blk.0.attn_norm.weight", np.zeros(63, dtype=np.float32))
    close(writer)
    with pytest.raises(LoadError) as caught:
        load_model(path, device="cpu")
    expected = f"{path}: blk.0.attn_norm.weight: has shape [63], expected [64]"
    assert caught.value.message == expected


def test_rows_that_are_no_heads(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = minimal_writer(path)
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((63, 64), dtype=np.float32))
    close(writer)
    with pytest.raises(LoadError, match=r"blk.0.attn_q.weight: 63 rows do not divide into 4 heads"):
        GgufFile(path).tensor("model.layers.0.self_attn.q_proj.weight")


def test_not_a_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content in (b"", b"GGU", b"PK\x03\x04 something else"):
        path.write_bytes(content)
        assert refusal(path) == "not a GGUF file"


def test_truncated_anywhere(tmp_path: Path, tiny: Path) -> None:
    content = tiny.read_bytes()
    path = tmp_path / "model.gguf"
    for size in [*range(4, 2000, 13), *range(2000, len(content), len(content) // 60)]:
        path.write_bytes(content[:size])
        assert refusal(path).startswith("truncated or damaged GGUF file: ")


@given(offset=st.integers(4, 2500), byte=st.integers(0, 255))
def test_damaged_anywhere(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, offset: int, byte: int
) -> None:
    """Nonsense in the header is a LoadError or harmless, never another exception."""
    content = bytearray(tiny.read_bytes())
    content[offset] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    with suppress(LoadError):
        load_model(path, device="cpu")
