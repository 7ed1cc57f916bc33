"""DeepSeek V4's forward pass: all chunks' tokens packed in one row of tokens.

Shapes: T tokens of all chunks, M streams, N hidden size, R rotated features.
Source: paper §2; official code, ``Transformer`` and ``Block``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from ds4trio.models.deepseek_v4.attention import Attention, Piece
from ds4trio.models.deepseek_v4.rotation import rotation
from ds4trio.models.deepseek_v4.state import DeepseekV4State, LayerState
from ds4trio.models.layers.norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.base import Chunk, StateLayout
    from ds4trio.models.deepseek_v4.config import DeepseekV4Config
    from ds4trio.models.deepseek_v4.hyper_connection import HyperConnection, StreamsHead
    from ds4trio.models.deepseek_v4.moe import MixtureOfExperts
    from ds4trio.models.deepseek_v4.mtp import MtpLayer

#: Rows of the vocabulary's projection that are expanded to float32 at a time: 256 MiB for Flash.
_HEAD_ROWS = 16384


@dataclass(frozen=True, slots=True)
class Block:
    """One layer: attention and experts, each behind a norm and between streams."""

    attention: Attention
    experts: MixtureOfExperts
    attention_norm: torch.Tensor  # (N,) float32
    experts_norm: torch.Tensor  # (N,) float32
    attention_streams: HyperConnection
    experts_streams: HyperConnection
    norm_eps: float

    def __call__(
        self,
        streams: torch.Tensor,
        token_ids: torch.Tensor,
        by: torch.Tensor,
        pieces: Sequence[Piece],
    ) -> torch.Tensor:
        """Shapes: streams (T, M, N), token_ids (T,), by (T, R / 2); returns (T, M, N)."""
        entered = self.attention_streams.enter(streams)
        y = self.attention(self._norm(entered.x, self.attention_norm), by, pieces)
        streams = self.attention_streams.leave(y, streams, entered)
        entered = self.experts_streams.enter(streams)
        y = self.experts(self._norm(entered.x, self.experts_norm), token_ids)
        return self.experts_streams.leave(y, streams, entered)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.to(torch.float32), weight, self.norm_eps).to(x.dtype)


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All parameters."""

    embedding: torch.Tensor  # (vocabulary, N), as stored
    blocks: tuple[Block, ...]
    streams_head: StreamsHead
    norm: torch.Tensor  # (N,) float32
    head: torch.Tensor  # (vocabulary, N), as stored
    #: Predicts the token after the next; not part of ``forward``.
    mtp: MtpLayer | None


class DeepseekV4Model:
    """A CausalLM of DeepSeek V4. ``dtype``: of activations and states."""

    def __init__(
        self,
        config: DeepseekV4Config,
        weights: ModelWeights,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.weights = weights
        self._dtype = dtype
        self._device = device
        self._window_frequencies = self._float32(config.window_frequencies)
        self._compressed_frequencies = self._float32(config.compressed_frequencies)

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
    def new_state(self) -> DeepseekV4State:
        return DeepseekV4State(self.config, dtype=self._dtype, device=self._device)

    @torch.inference_mode()
    def new_mtp_state(self) -> LayerState:
        """What ``draft`` remembers of one sequence."""
        return LayerState(self.config, None, self._dtype, self._device)

    @torch.inference_mode()
    def draft(
        self, streams: torch.Tensor, token_ids: torch.Tensor, state: LayerState, position: int
    ) -> torch.Tensor:
        """Logits of the token after each of ``token_ids``, by the layer of token prediction.

        ``streams`` are ``advance``'s for the token before each; ``position`` counts what
        ``state`` has seen. Shapes: streams (T, M, N), token_ids (T,); returns (T, vocabulary).
        """
        mtp = self.weights.mtp
        assert mtp is not None
        stop = position + len(token_ids)
        by = rotation(torch.arange(position, stop, device=self._device), self._window_frequencies)
        embedded = self.weights.embedding[token_ids].to(self._dtype)
        pieces = [Piece(0, len(token_ids), position, state)]
        x = mtp(streams, embedded, token_ids, by, pieces)
        return vocabulary_logits(x, self.weights.head)

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        return self._logits(self.advance(chunks), chunks)

    @torch.inference_mode()
    def advance(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """As ``forward``, up to the last streams, which ``draft`` reads. Returns (T, M, N)."""
        token_ids = self._token_ids(chunks)
        positions = self._positions(chunks)
        window_by = rotation(positions, self._window_frequencies)
        compressed_by = rotation(positions, self._compressed_frequencies)
        streams = self._streams(token_ids)
        for index, block in enumerate(self.weights.blocks):
            by = compressed_by if self.config.compression[index] else window_by
            streams = block(streams, token_ids, by, _pieces(chunks, index))
        for chunk in chunks:
            _state(chunk).length += len(chunk.token_ids)
        return streams

    def _streams(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The embedding in every stream. Shapes: returns (T, M, N)."""
        x = self.weights.embedding[token_ids].to(self._dtype)
        return x.unsqueeze(1).expand(-1, self.config.streams, -1)

    def _logits(self, streams: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
        ends = accumulate(len(chunk.token_ids) for chunk in chunks)
        rows = [
            row
            for chunk, end in zip(chunks, ends, strict=True)
            for row in range(end - chunk.logit_rows, end)
        ]
        if len(rows) < len(streams):
            streams = streams[torch.tensor(rows, dtype=torch.int64, device=self._device)]
        x = self.weights.streams_head(streams).to(torch.float32)
        x = rms_norm(x, self.weights.norm, self.config.norm_eps)
        return vocabulary_logits(x, self.weights.head)

    def _token_ids(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """The packed row, on the device. Checked here: a GPU does not survive a bad index."""
        for chunk in chunks:
            size = len(chunk.token_ids)
            if not 0 <= chunk.logit_rows <= size or size == 0:
                raise ValueError(f"{chunk.logit_rows} rows of logits for {size} tokens")
            if chunk.state.length + size > self.config.context_tokens:
                raise ValueError("the sequence is longer than the context")
        flat = [token_id for chunk in chunks for token_id in chunk.token_ids]
        if min(flat) < 0 or max(flat) >= self.config.vocab_size:
            raise ValueError("a token id is not in the vocabulary")
        return torch.tensor(flat, dtype=torch.int64, device=self._device)

    def _positions(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Shapes: returns (T,)."""
        positions = [
            position
            for chunk in chunks
            for position in range(chunk.state.length, chunk.state.length + len(chunk.token_ids))
        ]
        return torch.tensor(positions, dtype=torch.int64, device=self._device)

    def _float32(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)


def vocabulary_logits(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Projection in float32, as the release's, of weights that stay as stored.

    Shapes: x (T, N) float32, head (vocabulary, N); returns (T, vocabulary).
    """
    parts = [linear(x, rows.to(torch.float32)) for rows in torch.split(head, _HEAD_ROWS)]
    return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


def _pieces(chunks: Sequence[Chunk], layer: int) -> list[Piece]:
    sizes = [len(chunk.token_ids) for chunk in chunks]
    return [
        Piece(stop - size, stop, chunk.state.length, _state(chunk).layers[layer])
        for chunk, size, stop in zip(chunks, sizes, accumulate(sizes), strict=True)
    ]


def _state(chunk: Chunk) -> DeepseekV4State:
    assert isinstance(chunk.state, DeepseekV4State)
    return chunk.state
