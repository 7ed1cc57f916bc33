"""Tiny random checkpoints of each variant, written and answered for by transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

VOCABULARY = 97
CONTEXT = 256
#: Without CUDA, a test marked gpu says why it did not run.
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

_CLASSES: dict[type[PreTrainedConfig], type[PreTrainedModel]] = {
    LlamaConfig: LlamaForCausalLM,
    MistralConfig: MistralForCausalLM,
    Qwen2Config: Qwen2ForCausalLM,
    Qwen3Config: Qwen3ForCausalLM,
}
_TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [1.0, 1.5, 2.0, 4.0],
    "original_max_position_embeddings": 64,
}


def _llama(**settings: Any) -> LlamaConfig:
    return LlamaConfig(**{**_TINY, **settings})


def _rope(kind: str, **settings: Any) -> LlamaConfig:
    return _llama(rope_parameters={"rope_type": kind, "rope_theta": 1000.0, **settings})


def variants() -> dict[str, PreTrainedConfig]:
    """A configuration for each difference within the family."""
    return {
        "smollm2": _llama(tie_word_embeddings=True),
        "llama2": _llama(num_key_value_heads=6),
        "llama3": _llama(rope_parameters=_LLAMA3),
        "linear": _rope("linear", factor=4.0),
        "dynamic": _rope("dynamic", factor=4.0),
        "yarn": _llama(rope_parameters=_YARN),
        "yarn-attention-factor": _llama(rope_parameters=_YARN | {"attention_factor": 1.3}),
        "yarn-mscale": _llama(
            rope_parameters=_YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False}
        ),
        "yarn-beta": _llama(
            rope_parameters=_YARN | {"rope_theta": 10.0, "beta_fast": 16.0, "beta_slow": 0.5}
        ),
        "longrope": _llama(rope_parameters=_LONGROPE),
        "biases": _llama(attention_bias=True, mlp_bias=True),
        "wide-heads": _llama(head_dim=16),
        "qwen2": Qwen2Config(**_TINY),
        "qwen3": Qwen3Config(**_TINY, head_dim=32, tie_word_embeddings=True),
        "qwen3-bias": Qwen3Config(**_TINY, head_dim=16, attention_bias=True),
        "mistral": MistralConfig(**_TINY, sliding_window=None),
    }


def make_checkpoint(config: PreTrainedConfig, folder: Path, *, shard: str = "1GB") -> None:
    """A model with every parameter random, biases and norms too, saved by transformers."""
    generator = torch.Generator().manual_seed(20)
    model = _CLASSES[type(config)](config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.15 * noise)
    model.save_pretrained(folder, max_shard_size=shard)


def checkpoint(tmp_path_factory: pytest.TempPathFactory, variant: str) -> Path:
    """A variant's folder, made when first asked for in a session. Not to be written to."""
    folder = tmp_path_factory.getbasetemp() / f"checkpoint-{variant}"
    if not folder.exists():
        make_checkpoint(variants()[variant], folder)
    return folder


def oracle(folder: Path) -> PreTrainedModel:
    """The same checkpoint in transformers, in fp32 and without fused attention."""
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    (cls,) = (cls for kind, cls in _CLASSES.items() if kind.model_type == model_type)
    model: PreTrainedModel = cls.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model


def oracle_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Shapes: returns (tokens, vocabulary)."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
    return ids


def rewrite_config(folder: Path, **changes: object) -> None:
    """Change settings of a saved ``config.json``; None removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: v for name, v in config.items() if v is not None}))
