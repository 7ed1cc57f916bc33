"""The layer that predicts the token after the next (multi-token prediction).

It reads the model's last streams and the embedding of the token that came next. What it computes
is drafts: the model's own ``forward`` does not use it.
Source: official code, ``MTPBlock``; DeepSeek-V3 report §2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ds4trio.models.layers.norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.deepseek_v4.attention import Piece
    from ds4trio.models.deepseek_v4.block import Block
    from ds4trio.models.deepseek_v4.hyper_connection import StreamsHead
    from ds4trio.models.deepseek_v4.matrix import Linear


@dataclass(frozen=True, slots=True)
class MtpLayer:
    """Shapes: T tokens, M streams, N hidden size, R rotated features."""

    embedding_norm: torch.Tensor  # (N,) float32
    streams_norm: torch.Tensor  # (N,) float32
    embedding_projection: Linear  # (N, N)
    streams_projection: Linear  # (N, N)
    block: Block
    streams_head: StreamsHead
    norm: torch.Tensor  # (N,) float32
    norm_eps: float

    def advance(
        self,
        streams: torch.Tensor,
        embedded: torch.Tensor,
        token_ids: torch.Tensor,
        by: torch.Tensor,
        pieces: Sequence[Piece],
    ) -> torch.Tensor:
        """Streams of ``token_ids``, whose embeddings are ``embedded``.

        ``streams`` are those of the tokens before: the model's last or, further ahead, the layer's
        own. Shapes: streams (T, M, N), embedded (T, N), token_ids (T,), by (T, R / 2); returns
        (T, M, N).
        """
        e = self.embedding_projection(self._norm(embedded, self.embedding_norm))
        streams = self.streams_projection(self._norm(streams, self.streams_norm)) + e.unsqueeze(1)
        return self.block(streams, token_ids, by, pieces)

    def finish(self, streams: torch.Tensor) -> torch.Tensor:
        """What the vocabulary projection turns into logits of the tokens that come next.

        Shapes: streams (T, M, N), of ``advance``; returns (T, N) float32.
        """
        x = self.streams_head(streams).to(torch.float32)
        return rms_norm(x, self.norm, self.norm_eps)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.to(torch.float32), weight, self.norm_eps).to(x.dtype)
