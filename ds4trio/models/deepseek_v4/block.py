"""One layer of DeepSeek V4.

Shapes: T tokens of all chunks, M streams, N hidden size, R rotated features.
Source: paper §2; official code, ``Block``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ds4trio.models.layers.norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.deepseek_v4.attention import Attention, Piece
    from ds4trio.models.deepseek_v4.hyper_connection import HyperConnection
    from ds4trio.models.deepseek_v4.moe import MixtureOfExperts


@dataclass(frozen=True, slots=True)
class Block:
    """Attention and experts, each behind a norm and between streams."""

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
