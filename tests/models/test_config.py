"""Settings that change the numbers are understood or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import variants

from ds4trio.errors import LoadError
from ds4trio.models.config_fields import ConfigFields, read_json_object
from ds4trio.models.llama.config import LlamaConfig, read_config

PATH = Path("somewhere/config.json")


def settings_of(variant: str, **changes: object) -> ConfigFields:
    """A variant's ``config.json`` with changes; None removes a setting."""
    values = {**variants()[variant].to_dict(), **changes}
    return ConfigFields(PATH, values)


def read(variant: str, *, context_tokens: int | None = None, **changes: Any) -> LlamaConfig:
    return read_config(settings_of(variant, **changes), context_tokens)


def rope(**settings: object) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **settings}}


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("llama2", {"model_type": "gemma"}, "model_type: 'gemma' is not of the Llama family"),
        ("llama2", {"model_type": None}, "model_type: missing"),
        ("llama2", {"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
        ("llama2", {"hidden_size": None}, "hidden_size: missing"),
        ("llama2", {"hidden_size": "48"}, "hidden_size: '48' is not a whole number above 0"),
        ("llama2", {"num_hidden_layers": 0}, "num_hidden_layers: 0 is not a whole number above 0"),
        ("llama2", {"num_hidden_layers": True}, "num_hidden_layers: True is not a whole number"),
        ("llama2", {"rms_norm_eps": -1}, "rms_norm_eps: -1 is not a number above 0"),
        ("llama2", {"rms_norm_eps": float("nan")}, "rms_norm_eps: nan is not a number above 0"),
        ("llama2", {"tie_word_embeddings": 1}, "tie_word_embeddings: 1 is neither true nor false"),
        ("llama2", {"num_key_value_heads": 4}, "num_key_value_heads: 4 does not divide 6 heads"),
        ("llama2", {"head_dim": 7}, "head_dim: 7 is odd"),
        ("llama2", {"quantization_config": {}}, "quantization_config: quantised safetensors"),
        ("llama2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: a part of a head"),
        (
            "llama2",
            rope(partial_rotary_factor=0.5),
            "rope_parameters.partial_rotary_factor: a part",
        ),
        ("llama2", rope(rope_type="mrope"), "rope_parameters.rope_type: 'mrope' is not supported"),
        ("llama2", rope(rope_type="linear"), "rope_parameters.factor: missing"),
        ("llama2", rope(rope_type="linear", factor="2"), "factor: '2' is not a number above 0"),
        ("llama2", {"rope_parameters": [1]}, "rope_parameters: [1] is not an object"),
        (
            "llama2",
            {"rope_parameters": None, "rope_scaling": {"type": "su", "factor": 2.0}},
            "rope_scaling.type: 'su' is not supported",
        ),
        (
            "llama3",
            rope(rope_type="llama3", factor=8, low_freq_factor=4, high_freq_factor=4),
            "rope_parameters.high_freq_factor: 4 is not above low_freq_factor 4",
        ),
        (
            "longrope",
            rope(rope_type="longrope", short_factor=[1, 1, 1], long_factor=[1, 1, 1]),
            "rope_parameters.short_factor: has 3 factors, expected 4",
        ),
        (
            "longrope",
            rope(rope_type="longrope", short_factor=[1, "x"], long_factor=[1, 1]),
            "rope_parameters.short_factor.1: 'x' is not a number above 0",
        ),
        (
            "longrope",
            rope(
                rope_type="longrope",
                short_factor=[1, 1, 1, 1],
                long_factor=[1, 1, 1, 2],
                original_max_position_embeddings=64,
            ),
            "rope_parameters.long_factor: differs from short_factor",
        ),
        ("mistral", {"sliding_window": 255}, "sliding_window: attention over the last 255 tokens"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8}, "sliding_window: attention"),
        ("qwen3", {"layer_types": ["linear_attention"]}, "layer_types: 'linear_attention' is not"),
        ("qwen3", {"layer_types": "full"}, "layer_types: 'full' is not a list of texts"),
    ],
)
def test_refusals(variant: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError) as caught:
        read(variant, **changes)
    assert caught.value.message.startswith(f"{PATH}: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_window_that_hides_nothing_is_fine() -> None:
    assert read("mistral", sliding_window=256).context_tokens == 256
    assert read("mistral", sliding_window=100, context_tokens=100).context_tokens == 100
    assert read("qwen2", sliding_window=8).context_tokens == 256
    assert read("llama2", sliding_window=8).context_tokens == 256


def test_context() -> None:
    assert read("llama2").context_tokens == 256
    assert read("llama2", context_tokens=10).context_tokens == 10
    with pytest.raises(LoadError, match="context_tokens 257 is more than the model's 256"):
        read("llama2", context_tokens=257)


def test_yarn_lengthens_the_context_of_a_config_that_keeps_the_original() -> None:
    """Qwen 2.5's instructions add rope_scaling and leave max_position_embeddings alone."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    config = read("qwen2", rope_parameters=None, rope_scaling=scaling, rope_theta=1e6)
    assert config.context_tokens == 1024


def test_the_old_form_of_rope_settings_is_the_new_one() -> None:
    scaling = {"type": "linear", "factor": 2.0}
    old = read("llama2", rope_parameters=None, rope_scaling=scaling, rope_theta=500.0)
    new = read("llama2", **rope(rope_type="linear", factor=2.0, rope_theta=500.0))
    assert old.rope == new.rope
    assert old.rope.frequencies[0] == 0.5


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not JSON"), (b"[]", "not a JSON object"), (b"\xff", "not JSON")],
)
def test_unreadable_json(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=f"config.json: {message}"):
        read_json_object(path)


def test_no_json(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"config.json: No such file"):
        read_json_object(tmp_path / "config.json")
