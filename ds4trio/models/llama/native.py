"""The Llama family on a CPU over quantised weights, a compiled step at a time.

Shapes: N hidden size, Q query heads, K key and value heads, D features of a head.
``model`` is the reference. Keys and values are halves; activations are quantised in blocks of 32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ds4trio.models.llama.row import packed_row
from ds4trio.models.llama.state import KvState, kv_state
from ds4trio.models.native.decoder import BLOCK, HEAD_DIMS, CDecoder, CLayer, CSpan, Native, Packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ds4trio.models.base import Chunk, StateLayout
    from ds4trio.models.llama.config import LlamaConfig
    from ds4trio.models.llama.model import LayerWeights, Linear
    from ds4trio.models.options import Quantised

#: What rounding alone leaves where weights once were quantised so, as a share of the largest.
_ROUNDING = 1e-4


def why_not(config: LlamaConfig) -> str | None:
    """What this model has that the compiled step cannot compute."""
    if config.hidden_size % BLOCK or config.intermediate_size % BLOCK:
        return f"its width is not a multiple of {BLOCK}"
    if config.head_dim not in HEAD_DIMS:
        return f"its heads have {config.head_dim} features"
    return None


@dataclass(frozen=True, slots=True)
class Packer:
    """Quantises matrices: to 4 bits, 8 bits, or 4 where that loses nothing and else 8."""

    native: Native
    kind: Quantised

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Packed:
        """Shapes: weight (rows, cols), bias (rows,), both float32."""
        limit = _ROUNDING if self.kind == "lossless" else math.inf
        return self._packed(weight, bias, limit)

    def table(self, weight: torch.Tensor) -> Packed:
        """The embedding or the head: what 4 bits lose there costs most."""
        return self._packed(weight, None, _ROUNDING)

    def _packed(self, weight: torch.Tensor, bias: torch.Tensor | None, limit: float) -> Packed:
        packed, error = self.native.pack(weight, 8 if self.kind == "int8" else 4, limit)
        if error > limit:
            packed, _ = self.native.pack(weight, 8)
        return replace(packed, bias=bias)

    def linear(self, linear: Linear) -> Packed:
        return self.matrix(linear.weight, linear.bias)

    def layer(self, layer: LayerWeights) -> PackedLayer:
        return PackedLayer(
            layer.attention_norm,
            layer.mlp_norm,
            layer.qk_norm,
            self.linear(layer.qkv),
            self.linear(layer.attention_output),
            self.linear(layer.gate_up),
            self.linear(layer.down),
        )


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """See ``model.LayerWeights``."""

    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    qk_norm: torch.Tensor | None
    qkv: Packed
    output: Packed
    gate_up: Packed
    down: Packed

    def as_struct(self) -> CLayer:
        return CLayer(
            self.attention_norm.data_ptr(),
            self.mlp_norm.data_ptr(),
            None if self.qk_norm is None else self.qk_norm.data_ptr(),
            self.qkv.as_struct(),
            self.output.as_struct(),
            self.gate_up.as_struct(),
            self.down.as_struct(),
        )


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """``head`` is the same object as ``embedding`` where they are tied."""

    embedding: Packed
    layers: tuple[PackedLayer, ...]
    norm: torch.Tensor
    head: Packed


class NativeLlamaModel:
    """A CausalLM of the Llama family."""

    def __init__(self, config: LlamaConfig, weights: PackedWeights, native: Native) -> None:
        self.config = config
        self._weights = weights
        self._native = native
        self._frequencies = torch.tensor(config.rope.frequencies, dtype=torch.float32)
        self._layers = (CLayer * config.layers)(*(layer.as_struct() for layer in weights.layers))
        self._decoder = CDecoder(
            config.hidden_size,
            config.intermediate_size,
            config.query_heads,
            config.kv_heads,
            config.head_dim,
            config.layers,
            config.norm_eps,
            config.rope.scale,
            self._frequencies.data_ptr(),
            weights.norm.data_ptr(),
            weights.embedding.as_struct(),
            weights.head.as_struct(),
            self._layers,
        )
        self._workspace = torch.empty(0, dtype=torch.uint8)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_tokens(self) -> int:
        return self.config.context_tokens

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def state_layout(self) -> StateLayout:
        return self.new_state().layout

    @torch.inference_mode()
    def new_state(self) -> KvState:
        return KvState(self.config, dtype=torch.float16, device=self.device)

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        token_ids = packed_row(self.config, chunks)
        spans = list(_spans(chunks))
        logits = torch.empty(sum(span.logit_rows for span in spans), self.config.vocab_size)
        wanted = self._native.workspace_bytes(self._decoder, len(token_ids))
        if wanted > len(self._workspace):
            self._workspace = torch.empty(wanted, dtype=torch.uint8)
        self._native.forward(self._decoder, token_ids, spans, logits, self._workspace)
        for chunk in chunks:
            kv_state(chunk).length += len(chunk.token_ids)
        return logits


def _spans(chunks: Iterable[Chunk]) -> Iterable[CSpan]:
    start = 0
    for chunk in chunks:
        state, size = kv_state(chunk), len(chunk.token_ids)
        state.reserve(size)
        kv = state.memory
        yield CSpan(
            start, size, state.length, chunk.logit_rows, kv.data_ptr(), kv.stride(0), kv.stride(1)
        )
        start += size
