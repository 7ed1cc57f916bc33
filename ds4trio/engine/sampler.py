"""Logits to tokens.

The order of the filters is vLLM's: ``temperature``, then ``top_k`` and ``min_p`` (which commute),
then ``top_p`` of the mass that is left. Each of the three is a threshold: tokens as likely as the
last one kept are kept too, so that the choice depends neither on the order in which a sort leaves
equal logits nor on what other rows ask for.

A row's token is where one number, drawn uniformly from the row's own generator, falls in the row's
cumulative distribution in the order of ids. So a seeded sequence takes one draw a token and is the
same whatever shares its batch.

Shapes: N rows, V vocabulary, K sorted candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from ds4trio.request import SamplingParams

#: Below this a temperature is greedy: dividing by it only overflows. Source: vLLM's sampler.
GREEDY_TEMPERATURE = 1e-5
#: Candidates that top_p looks at first; a full sort of a vocabulary costs 100 times as much. A
#: guess: it holds 0.95 of the mass of any but the flattest distributions.
NUCLEUS_CANDIDATES = 256


class SamplingRow(Protocol):
    """Who asks for a token."""

    @property
    def sampling(self) -> SamplingParams: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def forbidden_ids(self) -> frozenset[int]: ...


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int | None]:
    """One token id for each row; None where the row's logits are unusable (NaN, infinite, or all
    forbidden), which disturbs no other row.

    Shapes: logits (N, V) float32, not changed.
    """
    logits = _without_forbidden(logits, rows)
    best, ids = logits.max(dim=-1)  # (N,): the lowest id among equals; NaN wins
    usable = torch.isfinite(best)
    drawn = [
        index
        for index, (row, ok) in enumerate(zip(rows, usable.tolist(), strict=True))
        if ok and row.sampling.temperature >= GREEDY_TEMPERATURE
    ]
    if drawn:
        ids[drawn] = _draw(logits[drawn], best[drawn], [rows[index] for index in drawn])
    return [
        token_id if ok else None for token_id, ok in zip(ids.tolist(), usable.tolist(), strict=True)
    ]


def _without_forbidden(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    vocabulary = logits.shape[-1]
    where = [
        (index, token_id)
        for index, row in enumerate(rows)
        for token_id in row.forbidden_ids
        if token_id < vocabulary
    ]
    if not where:
        return logits
    row_ids, token_ids = torch.tensor(where, device=logits.device).T
    return logits.index_put((row_ids, token_ids), logits.new_tensor(-torch.inf))


def _draw(logits: torch.Tensor, best: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Shapes: logits (N, V), best (N,), all finite; returns (N,) ids."""
    params = [row.sampling for row in rows]
    # The best score is 0, so nothing overflows, and a weight is exp(score).
    scores = (logits - best[:, None]) / _column([p.temperature for p in params], logits)
    threshold = _threshold(scores, params)
    weights = torch.where(scores >= threshold, scores.exp(), 0.0)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    uniform = _column([row.rng.random() for row in rows], cumulative)
    # right: the first id whose cumulative weight exceeds the draw, which has a weight itself.
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]


def _threshold(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The lowest score that each row keeps.

    Shapes: scores (N, V), their best 0; returns (N, 1).
    """
    vocabulary = scores.shape[-1]
    minimum = _column([p.min_p for p in params], scores).log()  # min_p 0: -inf
    top_k = [p.top_k if 0 < p.top_k < vocabulary else vocabulary for p in params]
    is_nucleus = [p.top_p < 1.0 for p in params]
    widths = [k for k in top_k if k < vocabulary]
    if any(is_nucleus):
        widths.append(min(NUCLEUS_CANDIDATES, vocabulary))
    if not widths:
        return minimum
    candidates = scores.topk(max(widths), dim=-1).values  # (N, K), descending
    limited = [index for index, k in enumerate(top_k) if k < vocabulary]
    if limited:
        kth = torch.tensor([top_k[index] - 1 for index in limited], device=scores.device)
        minimum[limited] = torch.maximum(minimum[limited], candidates[limited, kth][:, None])
    nucleus = [index for index, wanted in enumerate(is_nucleus) if wanted]
    if nucleus:
        top_p = _column([params[index].top_p for index in nucleus], scores, torch.float64)
        minimum[nucleus] = _nucleus(scores[nucleus], candidates[nucleus], minimum[nucleus], top_p)
    return minimum


def _nucleus(
    scores: torch.Tensor, candidates: torch.Tensor, minimum: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """The last score of the smallest set of best tokens that holds ``top_p`` of what is kept.

    Shapes: scores (N, V), candidates (N, K) the best of them, descending, minimum and top_p (N, 1);
    returns (N, 1).
    """
    kept = torch.where(scores >= minimum, scores.exp(), 0.0)
    wanted = top_p * kept.sum(dim=-1, keepdim=True, dtype=torch.float64)
    cumulative = _kept_mass(candidates, minimum)
    last = torch.searchsorted(cumulative, wanted)
    short = (last[:, 0] >= candidates.shape[1]).nonzero()[:, 0].tolist()
    last = last.clamp(max=candidates.shape[1] - 1)
    result = candidates.gather(1, last)
    if short and candidates.shape[1] < scores.shape[1]:
        everything = scores[short].sort(dim=-1, descending=True).values
        mass = _kept_mass(everything, minimum[short])
        last = torch.searchsorted(mass, wanted[short]).clamp(max=scores.shape[1] - 1)
        result[short] = everything.gather(1, last)
    # Summed in another order, all that is kept may fall short of what is wanted by a rounding.
    return torch.maximum(result, minimum)


def _kept_mass(candidates: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    kept = torch.where(candidates >= minimum, candidates.exp(), 0.0)
    return kept.cumsum(dim=-1, dtype=torch.float64)


def _column(
    values: Sequence[float], like: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype or like.dtype, device=like.device)[:, None]
