"""Attention over a sliding window and over pooled rows of what lies before it.

One key of D features serves all query heads, and is the value too.

Shapes: T tokens of all chunks, S queries of one chunk, H heads, D features, W window,
K keys of the window, L pooled rows, F of them that a query looks at, G output groups.
Source: paper §2.3; official code, ``Attention`` and ``sparse_attn``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import rms_norm as unweighted_rms_norm

from ds4trio.models.deepseek_v4.matrix import fp8_round_trip
from ds4trio.models.deepseek_v4.rotation import rotate_
from ds4trio.models.layers.norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.deepseek_v4.compressor import Compressor
    from ds4trio.models.deepseek_v4.config import DeepseekV4Config
    from ds4trio.models.deepseek_v4.indexer import Indexer, IndexQueries
    from ds4trio.models.deepseek_v4.matrix import Linear, Matrix
    from ds4trio.models.deepseek_v4.state import LayerState

#: Numbers in the largest intermediate of a block of queries: 128 MiB in float32. A guess.
_BLOCK_NUMBERS = 1 << 25
#: Features that share a scale when keys are rounded as the release rounds them.
KEY_BLOCK = 64


class Piece(NamedTuple):
    """One chunk's place among the packed tokens, and what its layer remembers."""

    start: int
    stop: int
    position: int
    state: LayerState


class Rows(NamedTuple):
    """Keys that queries look at: the same for all, or gathered for each."""

    keys: torch.Tensor  # (F, D) or (S, F, D)
    seen: torch.Tensor  # (S, F) bool


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention."""

    config: DeepseekV4Config
    query_down: Linear  # (query rank, hidden)
    query_norm: torch.Tensor  # (query rank,) float32
    query_up: Linear  # (H * D, query rank)
    key: Linear  # (D, hidden)
    key_norm: torch.Tensor  # (D,) float32
    sinks: torch.Tensor  # (H,) float32
    output_down: Matrix  # (G * output rank, H * D / G)
    output_up: Linear  # (hidden, G * output rank)
    compressor: Compressor | None
    indexer: Indexer | None
    simulate: bool

    def __call__(self, x: torch.Tensor, by: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        """Shapes: x (T, hidden), by (T, R / 2); returns (T, hidden)."""
        config = self.config
        low = _norm(self.query_down(x), self.query_norm, config.norm_eps)
        q = self.query_up(low).view(len(x), config.heads, config.head_dim)
        q = unweighted_rms_norm(q, q.shape[-1:], eps=config.norm_eps)
        rotate_(q, by)
        keys = self._keys(x, by)
        pooled = self.compressor.project(x) if self.compressor else None
        indexed = self.indexer.compressor.project(x) if self.indexer else None
        asked = self.indexer.queries(x, low, by) if self.indexer else None
        out = torch.empty_like(q)
        for start, stop, position, state in pieces:
            if self.compressor and pooled is not None and state.pooled is not None:
                self.compressor.advance(pooled[start:stop], position, state.pooled)
            if self.indexer and indexed is not None and state.index is not None:
                self.indexer.compressor.advance(indexed[start:stop], position, state.index)
            self._attend(
                q[start:stop],
                keys[start:stop],
                asked.part(start, stop) if asked else None,
                position,
                state,
                out[start:stop],
            )
        rotate_(out, by.conj())
        return self._output(out)

    def _keys(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        keys = _norm(self.key(x), self.key_norm, self.config.norm_eps)
        rotate_(keys, by)
        return round_keys(keys, self.config.rope_dim) if self.simulate else keys

    def _attend(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        asked: IndexQueries | None,
        position: int,
        state: LayerState,
        out: torch.Tensor,
    ) -> None:
        """One chunk's queries, some at a time so that long prompts fit. Shapes: q (S, H, D)."""
        config = self.config
        first = max(0, position - config.window + 1)
        near = torch.cat((state.window.between(first, position), keys))
        state.window.put(keys, position)
        size = self._block_size(state)
        for start in range(0, len(q), size):
            block = q[start : start + size]
            positions = torch.arange(
                position + start, position + start + len(block), device=q.device
            )
            rows = [self._near(near, first, position + start, len(block), positions)]
            if state.pooled is not None:
                part = asked.part(start, start + len(block)) if asked else None
                rows.append(self._far(part, positions, position + start + len(block), state))
            out[start : start + size] = look(block, rows, self.sinks, config.head_dim**-0.5)

    def _near(
        self, near: torch.Tensor, first: int, start: int, count: int, positions: torch.Tensor
    ) -> Rows:
        """The last W tokens before each query, and the query's own. ``first``: of ``near``."""
        window = self.config.window
        low = max(first, start - window + 1)
        keys = near[low - first : start + count - first]
        back = positions.unsqueeze(1) - torch.arange(low, start + count, device=near.device)
        return Rows(keys, (back >= 0) & (back < window))

    def _far(
        self, asked: IndexQueries | None, positions: torch.Tensor, stop: int, state: LayerState
    ) -> Rows:
        """The pooled rows of windows that ended before each query, or the best of them."""
        assert self.compressor is not None
        assert state.pooled is not None
        ratio = self.compressor.compression.ratio
        visible = (positions + 1) // ratio
        rows = state.pooled.rows[: stop // ratio]
        if self.indexer is None or len(rows) <= self.config.index_top_k:
            places = torch.arange(len(rows), device=rows.device)
            return Rows(rows, places < visible.unsqueeze(1))
        assert asked is not None
        assert state.index is not None
        best, seen = self.indexer.select(asked, state.index.rows[: len(rows)], visible)
        return Rows(rows[best], seen)

    def _block_size(self, state: LayerState) -> int:
        """How many queries to take at a time."""
        config = self.config
        pooled = len(state.pooled.rows) if state.pooled is not None else 0
        a_query = config.heads * (2 * config.window + pooled)
        if self.indexer is not None and pooled > config.index_top_k:
            gathered = config.index_top_k * config.head_dim
            a_query = max(config.index_heads * pooled, gathered, config.heads * config.index_top_k)
        return max(1, min(config.window, _BLOCK_NUMBERS // a_query))

    def _output(self, heads: torch.Tensor) -> torch.Tensor:
        """Grouped low-rank output projection. Shapes: heads (T, H, D); returns (T, hidden)."""
        groups = self.config.output_groups
        grouped = heads.reshape(len(heads), groups, -1).transpose(0, 1)  # (G, T, H * D / G)
        down = self.output_down.expand(heads.dtype).view(groups, -1, grouped.shape[-1])
        low = torch.bmm(grouped, down.transpose(1, 2))  # (G, T, output rank)
        return self.output_up(low.transpose(0, 1).flatten(1))


def look(q: torch.Tensor, rows: Sequence[Rows], sinks: torch.Tensor, scale: float) -> torch.Tensor:
    """Softmax attention with a sink: a score of each head's own that takes weight and gives none.

    Shapes: q (S, H, D), sinks (H,); returns (S, H, D).
    """
    scaled = q * scale
    scores = []
    for keys, seen in rows:
        found = torch.matmul(scaled, keys.transpose(-1, -2)).to(torch.float32)  # (S, H, F)
        scores.append(found.masked_fill_(~seen.unsqueeze(1), float("-inf")))
    scores.append(sinks.expand(len(q), -1).unsqueeze(-1))
    weights = torch.softmax(torch.cat(scores, -1), -1).to(q.dtype)
    out = torch.zeros_like(q)
    start = 0
    for keys, _ in rows:
        stop = start + keys.shape[-2]
        out += torch.matmul(weights[..., start:stop], keys)
        start = stop
    return out


def round_keys(keys: torch.Tensor, rope_dim: int) -> torch.Tensor:
    """Keys whose features that do not turn went through FP8, as the release keeps them."""
    plain, turned = keys[..., :-rope_dim], keys[..., -rope_dim:]
    return torch.cat((fp8_round_trip(plain, KEY_BLOCK), turned), -1)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In float32 until after the weight, as the release does."""
    return rms_norm(x.to(torch.float32), weight, eps).to(x.dtype)
