"""From the last hidden features to logits."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

#: Rows of the vocabulary's projection that are expanded to float32 at a time: 256 MiB for Flash.
_HEAD_ROWS = 16384


def vocabulary_logits(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Projection in float32, as the release's, of weights that stay as stored.

    Shapes: x (T, N) float32, head (vocabulary, N); returns (T, vocabulary).
    """
    parts = [linear(x, rows.to(torch.float32)) for rows in torch.split(head, _HEAD_ROWS)]
    return torch.cat(parts, -1) if len(parts) > 1 else parts[0]
