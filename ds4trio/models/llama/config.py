"""The Llama family's settings, read from Hugging Face's ``config.json``.

What changes the numbers and is not implemented is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.models.layers.rope import Rope, read_rope

if TYPE_CHECKING:
    from ds4trio.models.config_fields import ConfigFields

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """A dense decoder with rotary embedding, grouped-query attention and a gated MLP."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    #: Longest sequence served: the model's own maximum, or less if so asked.
    context_tokens: int
    tied_embeddings: bool
    #: Biases of the query, key and value projections; of the attention's output; of the MLP.
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    #: Normalise each query and key head (Qwen 3).
    qk_norm: bool


def read_config(config: ConfigFields, context_tokens: int | None) -> LlamaConfig:
    """Settings of a model that serves sequences of ``context_tokens`` (None: its own maximum).

    Raises: LoadError naming the file and the setting.
    """
    model_type = config.text("model_type")
    if model_type not in MODEL_TYPES:
        raise config.error("model_type", f"{model_type!r} is not of the Llama family")
    if (act := config.text("hidden_act", "silu")) not in ("silu", "swish"):
        raise config.error("hidden_act", f"{act!r} is not supported")
    if config.has("quantization_config"):
        raise config.error("quantization_config", "quantised safetensors are not supported")
    hidden_size = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    # Qwen 3's is fixed where it is not given; the others divide.
    head_dim = config.integer("head_dim", 128 if model_type == "qwen3" else hidden_size // heads)
    if head_dim % 2:
        raise config.error("head_dim", f"{head_dim} is odd, so cannot be rotated in halves")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"{kv_heads} does not divide {heads} heads")
    max_positions = config.integer("max_position_embeddings", 2048)
    rope = read_rope(config, head_dim, max_positions)
    context_tokens = _context(config, max(max_positions, rope.context_tokens or 0), context_tokens)
    _check_sliding_window(config, model_type, context_tokens)
    attention_bias = config.flag("attention_bias", default=False)
    return LlamaConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        layers=config.integer("num_hidden_layers"),
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        context_tokens=context_tokens,
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
        # Transformers builds Qwen 2 and Mistral so whatever the file says.
        qkv_bias=model_type == "qwen2" or (attention_bias and model_type != "mistral"),
        output_bias=attention_bias and model_type in ("llama", "qwen3"),
        mlp_bias=model_type == "llama" and config.flag("mlp_bias", default=False),
        qk_norm=model_type == "qwen3",
    )


def _context(config: ConfigFields, maximum: int, asked: int | None) -> int:
    if asked is None:
        return maximum
    if asked > maximum:
        raise config.error(
            "max_position_embeddings", f"context_tokens {asked} is more than the model's {maximum}"
        )
    return asked


def _check_sliding_window(config: ConfigFields, model_type: str, context_tokens: int) -> None:
    """A window at least as long as the context hides nothing."""
    match model_type:
        case "mistral":
            used = config.has("sliding_window")
        case "qwen2" | "qwen3":
            used = config.flag("use_sliding_window", default=False)
        case _:
            used = False
    for kind in config.texts("layer_types"):
        if kind not in ("full_attention", "sliding_attention"):
            raise config.error("layer_types", f"{kind!r} is not supported")
    if used and (window := config.integer("sliding_window", 4096)) < context_tokens:
        raise config.error(
            "sliding_window",
            f"attention over the last {window} tokens only is not supported; "
            f"context_tokens of at most {window} avoids it",
        )
