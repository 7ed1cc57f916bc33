"""Which pooled rows each query of compressed sparse attention looks at.

Shapes: T tokens of all chunks, S queries, H index heads, D features of one, L pooled rows.
Source: paper §2.3.1, eqs. 13-17; official code, ``Indexer``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from ds4trio.models.deepseek_v4.rotation import rotate_

if TYPE_CHECKING:
    from collections.abc import Callable

    from ds4trio.models.deepseek_v4.compressor import Compressor
    from ds4trio.models.deepseek_v4.config import DeepseekV4Config
    from ds4trio.models.deepseek_v4.matrix import Linear


class IndexQueries(NamedTuple):
    """What the tokens ask the rows, and how much each head's answer counts."""

    q: torch.Tensor  # (T, H, D)
    weights: torch.Tensor  # (T, H) float32

    def part(self, start: int, stop: int) -> IndexQueries:
        return IndexQueries(self.q[start:stop], self.weights[start:stop])


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores rows with narrow heads and keeps the best."""

    config: DeepseekV4Config
    compressor: Compressor
    query: Linear  # (H * D, query rank)
    weights: Linear  # (H, hidden)
    #: Rounding of finished queries, where official run-time numerics are wanted.
    finish: Callable[[torch.Tensor], torch.Tensor] | None

    def queries(self, x: torch.Tensor, low: torch.Tensor, by: torch.Tensor) -> IndexQueries:
        """Shapes: x (T, hidden), low (T, query rank), by (T, R / 2)."""
        heads, features = self.config.index_heads, self.config.index_head_dim
        q = self.query(low).view(len(x), heads, features)
        rotate_(q, by)
        if self.finish is not None:
            q = self.finish(q)
        scale = (heads * features) ** -0.5
        return IndexQueries(q, self.weights(x).to(torch.float32) * scale)

    def select(
        self, queries: IndexQueries, rows: torch.Tensor, visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best of the rows that lie before each query, and which of them really do.

        Shapes: rows (L, D), visible (S,) how many rows lie before; returns (S, top k) twice.
        """
        scores = torch.relu(torch.matmul(queries.q.to(torch.float32), rows.to(torch.float32).T))
        totals = torch.bmm(queries.weights.unsqueeze(1), scores).squeeze(1)  # (S, L)
        later = torch.arange(len(rows), device=rows.device) >= visible.unsqueeze(1)
        totals.masked_fill_(later, float("-inf"))
        best = totals.topk(self.config.index_top_k, -1, sorted=False).indices
        return best, best < visible.unsqueeze(1)
