"""The Llama family's forward pass: all chunks' tokens packed in one row of tokens.

Shapes: T tokens of all chunks, S tokens of one chunk, L its length with what came before,
N hidden size, Q query heads, K key and value heads, G = Q / K, D features of a head.
Knows nothing of files. Source: Touvron et al. 2023 (arXiv 2302.13971, 2307.09288).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from ds4trio.models.layers.norm import rms_norm
from ds4trio.models.layers.rope import Rotation, rotate_, rotation
from ds4trio.models.llama.row import packed_row
from ds4trio.models.llama.state import KvState, kv_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.base import Chunk, StateLayout
    from ds4trio.models.llama.config import LlamaConfig


@dataclass(frozen=True, slots=True)
class Linear:
    """Shapes: weight (out, in), bias (out,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's parameters, projections that read the same input joined row below row."""

    attention_norm: torch.Tensor  # (N,)
    qkv: Linear  # ((Q + 2K) * D, N)
    qk_norm: torch.Tensor | None  # (Q + K, D)
    attention_output: Linear  # (N, Q * D)
    mlp_norm: torch.Tensor  # (N,)
    gate_up: Linear  # (2 * intermediate, N)
    down: Linear  # (N, intermediate)


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All parameters."""

    embedding: torch.Tensor  # (vocabulary, N)
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # (N,)
    head: Linear  # (vocabulary, N)


@dataclass(frozen=True, slots=True)
class _Span:
    """One chunk's place in the packed row, for the time of a forward."""

    start: int
    stop: int
    kv: tuple[torch.Tensor, ...]  # (2K, L, D) a layer
    #: Which of the past and the chunk each query sees; None for a single token, which sees all.
    mask: torch.Tensor | None  # (S * G, L), added to the scores


class LlamaModel:
    """A CausalLM of the Llama family."""

    def __init__(self, config: LlamaConfig, weights: ModelWeights) -> None:
        self.config = config
        self._weights = weights
        self._device = weights.embedding.device
        self._dtype = weights.embedding.dtype
        self._frequencies = torch.tensor(
            config.rope.frequencies, dtype=torch.float32, device=self._device
        )

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_tokens(self) -> int:
        return self.config.context_tokens

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def state_layout(self) -> StateLayout:
        return self.new_state().layout

    @torch.inference_mode()
    def new_state(self) -> KvState:
        return KvState(self.config, dtype=self._dtype, device=self._device)

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        row = packed_row(self.config, chunks)
        token_ids = torch.tensor(row, dtype=torch.int64, device=self._device)
        spans = self._spans(chunks)
        by = self._rotation(chunks)
        x = embedding(token_ids, self._weights.embedding)  # (T, N)
        for index, layer in enumerate(self._weights.layers):
            x += self._attention(index, layer, x, spans, by)
            x += self._mlp(layer, x)
        for chunk in chunks:
            kv_state(chunk).length += len(chunk.token_ids)
        return self._logits(x, chunks, spans)

    def _attention(
        self, index: int, layer: LayerWeights, x: torch.Tensor, spans: list[_Span], by: Rotation
    ) -> torch.Tensor:
        config = self.config
        rotated = config.query_heads + config.kv_heads
        x = rms_norm(x, layer.attention_norm, config.norm_eps)
        heads = layer.qkv(x).view(len(x), -1, config.head_dim)  # (T, Q + 2K, D)
        if layer.qk_norm is not None:
            heads[:, :rotated] = rms_norm(heads[:, :rotated], layer.qk_norm, config.norm_eps)
        rotate_(heads[:, :rotated], by)
        seen = [self._attend(heads[span.start : span.stop], span.kv[index], span) for span in spans]
        return layer.attention_output(torch.cat(seen) if len(seen) > 1 else seen[0])

    def _attend(self, heads: torch.Tensor, kv: torch.Tensor, span: _Span) -> torch.Tensor:
        """Write a chunk's keys and values, then let its queries look.

        The G query heads that share a key head become G rows of queries, so keys are read once.
        Shapes: heads (S, Q + 2K, D), kv (2K, L, D); returns (S, Q * D).
        """
        queries, groups, head_dim = self.config.query_heads, self.config.kv_heads, heads.shape[-1]
        size = len(heads)
        kv[:, kv.shape[1] - size :] = heads[:, queries:].transpose(0, 1)
        # (S, K, G, D) -> (K, S * G, D)
        rows = heads[:, :queries].view(size, groups, -1, head_dim).transpose(0, 1).flatten(1, 2)
        seen = scaled_dot_product_attention(
            rows[None], kv[None, :groups], kv[None, groups:], attn_mask=span.mask
        )
        # (K, S * G, D) -> (S, K * G * D)
        return seen.view(groups, size, -1, head_dim).transpose(0, 1).reshape(size, -1)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        x = rms_norm(x, layer.mlp_norm, self.config.norm_eps)
        gate, up = layer.gate_up(x).chunk(2, -1)
        return layer.down(silu(gate).mul_(up))

    def _logits(self, x: torch.Tensor, chunks: Sequence[Chunk], spans: list[_Span]) -> torch.Tensor:
        rows = [
            row
            for chunk, span in zip(chunks, spans, strict=True)
            for row in range(span.stop - chunk.logit_rows, span.stop)
        ]
        if len(rows) < len(x):
            x = x[torch.tensor(rows, dtype=torch.int64, device=self._device)]
        x = rms_norm(x, self._weights.norm, self.config.norm_eps)
        return self._weights.head(x).to(torch.float32)

    def _spans(self, chunks: Sequence[Chunk]) -> list[_Span]:
        sizes = [len(chunk.token_ids) for chunk in chunks]
        spans = []
        for chunk, size, stop in zip(chunks, sizes, accumulate(sizes), strict=True):
            state = kv_state(chunk)
            state.reserve(size)
            mask = self._mask(state.length, size) if size > 1 else None
            spans.append(_Span(stop - size, stop, state.layers(size), mask))
        return spans

    def _mask(self, past: int, size: int) -> torch.Tensor:
        """Minus infinity where a row of queries may not look. Shapes: returns (S * G, L)."""
        future = torch.full(
            (size, past + size), float("-inf"), dtype=self._dtype, device=self._device
        ).triu_(past + 1)
        return future.repeat_interleave(self.config.query_heads // self.config.kv_heads, 0)

    def _rotation(self, chunks: Sequence[Chunk]) -> Rotation:
        positions = [
            position
            for chunk in chunks
            for position in range(chunk.state.length, chunk.state.length + len(chunk.token_ids))
        ]
        return rotation(
            torch.tensor(positions, dtype=torch.int64, device=self._device),
            self._frequencies,
            self.config.rope.scale,
            self._dtype,
        )
