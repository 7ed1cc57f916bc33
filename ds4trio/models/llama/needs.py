"""How much a Llama needs, told from its settings alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ds4trio.models.llama.config import LlamaConfig, read_config
from ds4trio.models.llama.native import why_not
from ds4trio.models.native.decoder import packed_bytes
from ds4trio.models.needs import ModelNeeds

if TYPE_CHECKING:
    from ds4trio.models.config_fields import ConfigFields
    from ds4trio.models.options import Quantised
    from ds4trio.models.weights import TensorSource


def needs(
    config: ConfigFields,
    tensors: TensorSource | None,
    context_tokens: int | None,
    number_bytes: int,
) -> ModelNeeds:
    """``number_bytes``: of a weight and of an activation (2 for bf16). Raises: LoadError."""
    settings = read_config(config, context_tokens)
    parameters = parameter_count(settings)
    # Norms of heads are kept once for each head.
    heads = settings.query_heads + settings.kv_heads
    repeated = settings.layers * (heads - 2) * settings.head_dim if settings.qk_norm else 0
    return ModelNeeds(
        family=config.text("model_type"),
        parameters=parameters,
        layers=settings.layers,
        vocab_size=settings.vocab_size,
        context_tokens=settings.context_tokens,
        weights_bytes=(parameters + repeated) * number_bytes,
        experts_bytes=0,
        from_files=False,
        state_bytes=partial(_state_bytes, settings, number_bytes),
    )


def quantised_needs(
    config: ConfigFields, context_tokens: int | None, quantised: Quantised
) -> ModelNeeds | None:
    """At most, for matrices that lose nothing in 4 bits are kept so. None: it is not quantised.

    Raises: LoadError.
    """
    settings = read_config(config, context_tokens)
    if why_not(settings):
        return None
    plain = needs(config, None, context_tokens, 4)
    return replace(
        plain,
        weights_bytes=_packed_bytes(settings, 4 if quantised == "int4" else 8),
        state_bytes=partial(_state_bytes, settings, 2),
    )


def _packed_bytes(config: LlamaConfig, bits: int) -> int:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, joined = config.query_heads, config.query_heads + 2 * config.kv_heads
    layer = packed_bytes(joined * head_dim, hidden, bits)
    layer += packed_bytes(hidden, queries * head_dim, bits)
    layer += packed_bytes(2 * inner, hidden, bits) + packed_bytes(hidden, inner, bits)
    numbers = 2 * hidden
    numbers += joined * head_dim if config.qkv_bias else 0
    numbers += hidden if config.output_bias else 0
    numbers += 2 * inner + hidden if config.mlp_bias else 0
    numbers += (queries + config.kv_heads) * head_dim if config.qk_norm else 0
    tables = 1 if config.tied_embeddings else 2
    return (
        tables * packed_bytes(config.vocab_size, hidden, 8)
        + 4 * hidden
        + config.layers * (layer + 4 * numbers)
    )


def parameter_count(config: LlamaConfig) -> int:
    """Numbers learnt; an embedding that is also the output's counts once."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.query_heads * config.head_dim
    joined = queries + 2 * config.kv_heads * config.head_dim
    layer = 2 * hidden + joined * hidden + hidden * queries + 3 * inner * hidden
    layer += joined if config.qkv_bias else 0
    layer += hidden if config.output_bias else 0
    layer += 2 * inner + hidden if config.mlp_bias else 0
    layer += 2 * config.head_dim if config.qk_norm else 0
    tables = 1 if config.tied_embeddings else 2
    return tables * config.vocab_size * hidden + hidden + config.layers * layer


def _state_bytes(config: LlamaConfig, number_bytes: int, tokens: int) -> int:
    return config.layers * 2 * config.kv_heads * config.head_dim * tokens * number_bytes
