"""Rotary embedding of the last features of a head, in neighbouring pairs.

Source: official code, ``apply_rotary_emb``; Su et al. 2021 (arXiv 2104.09864).
"""

from __future__ import annotations

import torch


def rotation(positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Unit complex numbers. Shapes: positions (T,), frequencies (R / 2,); returns (T, R / 2)."""
    angles = torch.outer(positions.to(torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate_(heads: torch.Tensor, by: torch.Tensor) -> None:
    """Turn the last R features of each head in place. Shapes: heads (T, ..., D), by (T, R / 2)."""
    turning = heads[..., -2 * by.shape[-1] :]
    pairs = torch.view_as_complex(turning.to(torch.float32).reshape(*turning.shape[:-1], -1, 2))
    by = by.reshape(len(by), *(1,) * (heads.dim() - 2), -1)
    turning.copy_(torch.view_as_real(pairs * by).flatten(-2))
