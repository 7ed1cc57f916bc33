"""Logits to log probabilities: the model's own distribution, in natural logarithms.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.engine.job import TopLogprobs


@torch.inference_mode()
def logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], top: Sequence[int]
) -> list[tuple[float, TopLogprobs]]:
    """Each row's token's, and so many likeliest tokens'.

    Shapes: logits (N, V) float32, not changed; token_ids and top N.
    """
    norm = logits.logsumexp(dim=-1, keepdim=True)  # (N, 1)
    wanted = torch.tensor(token_ids, device=logits.device)[:, None]
    own = (logits.gather(1, wanted) - norm)[:, 0].tolist()
    widest = min(max(top), logits.shape[-1])
    values, ids = logits.topk(widest, dim=-1)  # (N, widest)
    likeliest = zip(ids.tolist(), (values - norm).tolist(), top, strict=True)
    return [
        (value, tuple(zip(row_ids[:count], row_values[:count], strict=True)))
        for value, (row_ids, row_values, count) in zip(own, likeliest, strict=True)
    ]
