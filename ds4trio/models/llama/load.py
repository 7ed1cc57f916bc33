"""From a checkpoint in Hugging Face's names to a Llama model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from ds4trio.models.llama.config import LlamaConfig, read_config
from ds4trio.models.llama.model import LayerWeights, Linear, LlamaModel, ModelWeights
from ds4trio.models.llama.native import NativeLlamaModel, PackedWeights, Packer, why_not
from ds4trio.models.native.build import CannotBuild, library
from ds4trio.models.native.decoder import Native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.config_fields import ConfigFields
    from ds4trio.models.options import ModelOptions, Quantised
    from ds4trio.models.weights import Weights

logger = logging.getLogger("ds4trio.models")


@torch.inference_mode()
def load(
    config: ConfigFields,
    weights: Weights,
    context_tokens: int | None,
    options: ModelOptions | None = None,
) -> LlamaModel | NativeLlamaModel:
    """Runs on: worker. Raises: LoadError naming the file and the tensor or setting."""
    if options is not None:
        options.refuse(config)
    settings = read_config(config, context_tokens)
    if options is None or options.quantised is None:
        return _load_plain(settings, weights)
    try:
        packer = _packer(settings, options.quantised)
    except CannotBuild as error:
        model = _load_plain(settings, weights)
        logger.warning("weights stay in fp32, which is slower: %s", error)
        return model
    return _load_packed(settings, weights, packer)


def _load_plain(settings: LlamaConfig, weights: Weights) -> LlamaModel:
    hidden, vocabulary = settings.hidden_size, settings.vocab_size
    embedding = weights.take("model.embed_tokens.weight", vocabulary, hidden)
    if settings.tied_embeddings:
        head = embedding
        weights.take_copy_of("lm_head.weight", embedding)
    else:
        head = weights.take("lm_head.weight", vocabulary, hidden)
    layers = tuple(_layer(settings, weights, index) for index in range(settings.layers))
    norm = weights.take("model.norm.weight", hidden)
    weights.finish()
    return LlamaModel(settings, ModelWeights(embedding, layers, norm, Linear(head)))


def _packer(config: LlamaConfig, kind: Quantised) -> Packer:
    """Raises: CannotBuild if this model, or this machine, is for plain torch."""
    if reason := why_not(config):
        raise CannotBuild(reason)
    return Packer(Native(library()), kind)


def _load_packed(config: LlamaConfig, weights: Weights, packer: Packer) -> NativeLlamaModel:
    """A layer at a time, so that no more than one is there in float32."""
    table = (config.vocab_size, config.hidden_size)
    embedding = weights.take("model.embed_tokens.weight", *table)
    packed = packer.table(embedding)
    if config.tied_embeddings:
        weights.take_copy_of("lm_head.weight", embedding)
        head = packed
    else:
        head = packer.table(weights.take("lm_head.weight", *table))
    del embedding
    layers = tuple(packer.layer(_layer(config, weights, index)) for index in range(config.layers))
    norm = weights.take("model.norm.weight", config.hidden_size)
    weights.finish()
    packer.native.trim_memory()
    return NativeLlamaModel(config, PackedWeights(packed, layers, norm, head), packer.native)


def _layer(config: LlamaConfig, weights: Weights, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}."
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.query_heads * head_dim, config.kv_heads * head_dim

    def projection(names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear:
        return Linear(
            weights.take_joined([f"{prefix}{name}.weight" for name in names], rows, columns),
            weights.take_joined([f"{prefix}{name}.bias" for name in names], rows) if bias else None,
        )

    qk_norm = None
    if config.qk_norm:
        q_norm = weights.take(f"{prefix}self_attn.q_norm.weight", head_dim)
        k_norm = weights.take(f"{prefix}self_attn.k_norm.weight", head_dim)
        qk_norm = torch.cat(
            (q_norm.expand(config.query_heads, -1), k_norm.expand(config.kv_heads, -1))
        )
    return LayerWeights(
        attention_norm=weights.take(f"{prefix}input_layernorm.weight", hidden),
        qkv=projection(
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            (q_rows, kv_rows, kv_rows),
            hidden,
            config.qkv_bias,
        ),
        qk_norm=qk_norm,
        attention_output=projection(("self_attn.o_proj",), (hidden,), q_rows, config.output_bias),
        mlp_norm=weights.take(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=projection(
            ("mlp.gate_proj", "mlp.up_proj"), (inner, inner), hidden, config.mlp_bias
        ),
        down=projection(("mlp.down_proj",), (hidden,), inner, config.mlp_bias),
    )
