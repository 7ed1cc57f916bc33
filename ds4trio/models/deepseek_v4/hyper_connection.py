"""Manifold-constrained hyper-connections: the residual as several streams.

Shapes: T tokens, M streams, N hidden size.
Source: paper §2.2; Xie et al., "mHC: Manifold-Constrained Hyper-Connections"; official code,
``hc_pre``, ``hc_post``, ``hc_head`` and ``hc_split_sinkhorn``. All weights act in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import linear

if TYPE_CHECKING:
    from ds4trio.models.deepseek_v4.config import DeepseekV4Config


class Entered(NamedTuple):
    """What a block gets, and how its answer goes back into the streams."""

    x: torch.Tensor  # (T, N)
    post: torch.Tensor  # (T, M)
    mix: torch.Tensor  # (T, M, M), from the first stream to the second


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """The streams' way into one block (attention or experts) and out of it."""

    config: DeepseekV4Config
    projection: torch.Tensor  # (M * (2 + M), M * N)
    base: torch.Tensor  # (M * (2 + M),)
    scale: torch.Tensor  # (3,)

    def enter(self, streams: torch.Tensor) -> Entered:
        """Shapes: streams (T, M, N)."""
        count, eps = self.config.streams, self.config.stream_eps
        sizes = [count, count, count * count]
        weights = _normalised_projection(streams, self.projection, self.config.norm_eps)
        pre, post, mix = torch.split(weights, sizes, -1)
        base_pre, base_post, base_mix = torch.split(self.base, sizes)
        scale_pre, scale_post, scale_mix = self.scale.unbind()
        pre = torch.sigmoid(pre * scale_pre + base_pre) + eps
        post = 2 * torch.sigmoid(post * scale_post + base_post)
        mix = (mix * scale_mix + base_mix).view(-1, count, count)
        mix = sinkhorn(mix, self.config.sinkhorn_iterations, eps)
        return Entered(_collapse(streams, pre), post, mix)

    def leave(self, y: torch.Tensor, streams: torch.Tensor, entered: Entered) -> torch.Tensor:
        """The streams after a block answered ``y``. Shapes: y (T, N); returns (T, M, N)."""
        kept = torch.matmul(entered.mix.transpose(-1, -2), streams.to(torch.float32))
        return (kept + entered.post.unsqueeze(-1) * y.unsqueeze(-2)).to(streams.dtype)


@dataclass(frozen=True, slots=True)
class StreamsHead:
    """The streams' way to the last norm."""

    config: DeepseekV4Config
    projection: torch.Tensor  # (M, M * N)
    base: torch.Tensor  # (M,)
    scale: torch.Tensor  # (1,)

    def __call__(self, streams: torch.Tensor) -> torch.Tensor:
        """Shapes: streams (T, M, N); returns (T, N)."""
        weights = _normalised_projection(streams, self.projection, self.config.norm_eps)
        pre = torch.sigmoid(weights * self.scale + self.base) + self.config.stream_eps
        return _collapse(streams, pre)


def sinkhorn(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Near a matrix whose rows and columns sum to 1. Shapes: (..., M, M).

    Source: Sinkhorn and Knopp 1967, with the official code's first step (softmax of the rows).
    """
    matrix = torch.softmax(logits, -1).add_(eps)
    matrix /= matrix.sum(-2, keepdim=True).add_(eps)
    for _ in range(iterations - 1):
        matrix /= matrix.sum(-1, keepdim=True).add_(eps)
        matrix /= matrix.sum(-2, keepdim=True).add_(eps)
    return matrix


def _normalised_projection(
    streams: torch.Tensor, projection: torch.Tensor, eps: float
) -> torch.Tensor:
    """A projection of all streams side by side, over their root mean square."""
    flat = streams.flatten(-2).to(torch.float32)
    return linear(flat, projection) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def _collapse(streams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of the streams. Shapes: (T, M, N), (T, M); returns (T, N)."""
    return (weights.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)
