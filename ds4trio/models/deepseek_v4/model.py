"""DeepSeek V4's forward pass: all chunks' tokens packed in one row of tokens.

Shapes: T tokens of all chunks, M streams, N hidden size, R rotated features.
Source: paper §2; official code, ``Transformer``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from ds4trio.models.deepseek_v4.attention import Piece
from ds4trio.models.deepseek_v4.drafting import MtpDrafter
from ds4trio.models.deepseek_v4.rotation import rotation
from ds4trio.models.deepseek_v4.state import DeepseekV4State
from ds4trio.models.deepseek_v4.vocabulary import vocabulary_logits
from ds4trio.models.layers.norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.base import Chunk, StateLayout
    from ds4trio.models.deepseek_v4.block import Block
    from ds4trio.models.deepseek_v4.config import DeepseekV4Config
    from ds4trio.models.deepseek_v4.hyper_connection import StreamsHead
    from ds4trio.models.deepseek_v4.mtp import MtpLayer


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
    """A SpeculativeLM of DeepSeek V4.

    ``dtype``: of activations and states. ``speculative_tokens``: see `MtpDrafter`; 0 makes none.
    ``claimed_bytes``: of the device's memory, for copies of experts that are yet to be made.
    """

    def __init__(
        self,
        config: DeepseekV4Config,
        weights: ModelWeights,
        *,
        dtype: torch.dtype,
        device: torch.device,
        speculative_tokens: int = 0,
        claimed_bytes: int = 0,
    ) -> None:
        self.config = config
        self.weights = weights
        self._dtype = dtype
        self._device = device
        self._window_frequencies = self._float32(config.window_frequencies)
        self._compressed_frequencies = self._float32(config.compressed_frequencies)
        self.claimed_bytes = claimed_bytes
        self.drafter = self._new_drafter(speculative_tokens) if speculative_tokens else None

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
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        return self.logits(self.advance(chunks), chunks)

    @torch.inference_mode()
    def advance(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """As ``forward``, up to the last streams. Shapes: returns (T, M, N)."""
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

    @torch.inference_mode()
    def logits(self, streams: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
        """What ``forward`` returns. Shapes: streams (T, M, N), of all the chunks' tokens."""
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

    def _streams(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The embedding in every stream. Shapes: returns (T, M, N)."""
        x = self.weights.embedding[token_ids].to(self._dtype)
        return x.unsqueeze(1).expand(-1, self.config.streams, -1)

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

    def _new_drafter(self, tokens: int) -> MtpDrafter:
        weights = self.weights
        assert weights.mtp is not None
        return MtpDrafter(
            self.config,
            weights.mtp,
            embedding=weights.embedding,
            head=weights.head,
            frequencies=self._window_frequencies,
            dtype=self._dtype,
            tokens=tokens,
        )


def _pieces(chunks: Sequence[Chunk], layer: int) -> list[Piece]:
    sizes = [len(chunk.token_ids) for chunk in chunks]
    return [
        Piece(stop - size, stop, chunk.state.length, _state(chunk).layers[layer])
        for chunk, size, stop in zip(chunks, sizes, accumulate(sizes), strict=True)
    ]


def _state(chunk: Chunk) -> DeepseekV4State:
    assert isinstance(chunk.state, DeepseekV4State)
    return chunk.state
