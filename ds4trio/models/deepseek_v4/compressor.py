"""Several tokens' keys pooled into one row, a weight for each token and feature.

Shapes: T tokens of all chunks, S tokens of one chunk, P parts (2 if windows overlap, else 1),
D features of a row, r the ratio, W windows.
Source: paper §2.3.1, eqs. 9-12 (overlapping) and §2.3.2, eqs. 20-23; official code, ``Compressor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ds4trio.models.deepseek_v4.rotation import rotate_, rotation
from ds4trio.models.layers.norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Callable

    from ds4trio.models.deepseek_v4.config import Compression
    from ds4trio.models.deepseek_v4.matrix import Linear
    from ds4trio.models.deepseek_v4.state import PooledState


@dataclass(frozen=True, slots=True)
class Compressor:
    """Pools the tokens of each window as soon as it is full.

    Overlapping windows read two parts of each token's features: the second for the token's own
    window, the first for the window after it.
    """

    compression: Compression
    kv: Linear  # (P * D, hidden)
    gate: Linear  # (P * D, hidden)
    #: What a token's place in its window adds to its gate.
    place_bias: torch.Tensor  # (r, P * D) float32
    norm: torch.Tensor  # (D,) float32
    norm_eps: float
    frequencies: torch.Tensor  # (R / 2,)
    #: Rounding of finished rows, where official run-time numerics are wanted.
    finish: Callable[[torch.Tensor], torch.Tensor] | None

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """In float32, as the release does it. ``advance`` takes the result in, chunk by chunk.

        Shapes: x (T, hidden); returns (T, 2 * P * D), values then gates.
        """
        x = x.to(torch.float32)
        return torch.cat((self.kv(x), self.gate(x)), -1)

    def advance(self, projected: torch.Tensor, position: int, state: PooledState) -> None:
        """Take in a chunk that begins at ``position``. Shapes: projected (S, 2 * P * D)."""
        ratio, sparse = self.compression.ratio, self.compression.sparse
        stop = position + len(projected)
        first_window, end_window = position // ratio, stop // ratio
        if end_window > first_window:
            # The window before the first has a part in it.
            has_previous = sparse and first_window > 0
            start = (first_window - has_previous) * ratio
            waiting = torch.cat((state.waiting.between(start, position), projected))
            windows = waiting[: end_window * ratio - start].view(-1, ratio, waiting.shape[1])
            rows = self._pool(windows, has_previous).to(state.rows.dtype)
            state.append(self._place(rows, first_window))
        state.waiting.put(projected, position)

    def _pool(self, windows: torch.Tensor, has_previous: bool) -> torch.Tensor:
        """Shapes: windows (W, r, 2 * P * D); returns (W or, with a previous window, W - 1, D)."""
        kv, gate = windows.chunk(2, -1)
        gate = gate + self.place_bias
        if self.compression.sparse:
            kv = _overlap(kv, has_previous, 0.0)
            gate = _overlap(gate, has_previous, float("-inf"))
        return (kv * gate.softmax(1)).sum(1)

    def _place(self, rows: torch.Tensor, first_window: int) -> torch.Tensor:
        """Normalise rows and turn each to its window's first position. Shapes: rows (W, D)."""
        normed = rms_norm(rows.to(torch.float32), self.norm, self.norm_eps)
        windows = torch.arange(first_window, first_window + len(rows), device=rows.device)
        rotate_(normed, rotation(windows * self.compression.ratio, self.frequencies))
        normed = normed.to(rows.dtype)
        return normed if self.finish is None else self.finish(normed)


def _overlap(windows: torch.Tensor, has_previous: bool, nothing: float) -> torch.Tensor:
    """Each window's second part behind the first part of the window before it.

    Shapes: windows (W, r, 2 * D); returns (W or W - 1, 2 * r, D).
    """
    earlier, own = windows.chunk(2, -1)
    if has_previous:
        return torch.cat((earlier[:-1], own[1:]), 1)
    before_all = torch.full_like(earlier[:1], nothing)
    return torch.cat((torch.cat((before_all, earlier[:-1])), own), 1)
