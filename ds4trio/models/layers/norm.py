"""Root mean square normalisation."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x`` over its root mean square along the last axis, times ``weight``.

    Computed in float32 whatever the dtype. Shapes: x (..., D); weight (D,) or (..., D).
    Source: Zhang and Sennrich 2019 (arXiv 1910.07467).
    """
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=eps).mul_(weight)
