"""Logits to tokens.

The order of the filters is vLLM's: ``temperature``, then ``top_k`` and ``min_p`` (which commute),
then ``top_p`` of the mass that is left. Each of the three is a threshold: tokens as likely as the
last one kept are kept too, so the choice does not depend on the order in which a sort leaves equal
logits.

A row's token is where one number, drawn uniformly from the row's own generator, falls in the row's
cumulative distribution in the order of ids. So a seeded sequence takes one draw a token, and what
a row gets depends on nothing but the row.

Shapes: N rows, V vocabulary, K candidates (the best of V, descending).
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
#: Filters look at so many tokens first: sorting a whole vocabulary costs 100 times as much. A
#: guess: they hold what is kept of any but the flattest distributions.
CANDIDATES = 256
#: Ids that are summed together to find a draw's place without a cumulative sum over all.
BLOCK = 128


class SamplingRow(Protocol):
    """Who asks for a token."""

    @property
    def sampling(self) -> SamplingParams: ...

    @property
    def rng(self) -> random.Random: ...


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int | None]:
    """One token id for each row; None where the row's logits are unusable (NaN, or the best of them
    infinite), which disturbs no other row. Tokens with a logit of -inf are never chosen.

    Shapes: logits (N, V) float32, not changed.
    """
    best, ids = logits.max(dim=-1)  # (N,): the lowest id among equals; NaN wins
    usable = torch.isfinite(best).tolist()
    drawn: list[int] = []
    filtered: list[int] = []
    for index, row in enumerate(rows):
        if usable[index] and row.sampling.temperature >= GREEDY_TEMPERATURE:
            (filtered if _is_filtered(row.sampling, logits.shape[-1]) else drawn).append(index)
    for group, draw in ((drawn, _draw_from_all), (filtered, _draw_from_best)):
        if group:
            params = _Params([rows[index] for index in group], logits)
            ids[group] = draw(_rows(logits, group), best[group, None], params)
    return [token_id if ok else None for token_id, ok in zip(ids.tolist(), usable, strict=True)]


def _rows(table: torch.Tensor, indices: list[int]) -> torch.Tensor:
    """``table[indices]`` for distinct ascending indices, without a copy if that is all of it."""
    if len(indices) == len(table):
        return table
    return table.index_select(0, torch.tensor(indices, device=table.device))


def _is_filtered(params: SamplingParams, vocabulary: int) -> bool:
    return 0 < params.top_k < vocabulary or params.top_p < 1 or params.min_p > 0


class _Params:
    """The rows' settings as columns (N, 1), and their draws."""

    def __init__(self, rows: Sequence[SamplingRow], logits: torch.Tensor) -> None:
        vocabulary, device = logits.shape[-1], logits.device
        settings = [row.sampling for row in rows]
        # Clients may send any integer, and one beyond 64 bits would end the worker.
        top_k = [min(p.top_k, vocabulary) if p.top_k > 0 else vocabulary for p in settings]
        self.temperature = _column([p.temperature for p in settings], device)
        self.min_score = _column([p.min_p for p in settings], device).log()  # min_p 0: -inf
        self.top_k = torch.tensor(top_k, device=device)[:, None]
        self.top_p = _column([p.top_p for p in settings], device, torch.float64)
        self.draw = _column([row.rng.random() for row in rows], device, torch.float64)

    def __getitem__(self, index: list[int]) -> _Params:
        part = object.__new__(_Params)
        for name, column in vars(self).items():
            setattr(part, name, column[index])
        return part


def _column(
    values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)[:, None]


def _scores(logits: torch.Tensor, best: torch.Tensor, params: _Params) -> torch.Tensor:
    """Tempered logits, the best of them 0: nothing overflows, and a weight is exp(score)."""
    return (logits - best).div_(params.temperature)


def _draw_from_all(logits: torch.Tensor, best: torch.Tensor, params: _Params) -> torch.Tensor:
    """Shapes: logits (N, V), best (N, 1), all finite; returns (N,) ids."""
    return _place(_scores(logits, best, params).exp_(), params.draw)


def _draw_from_best(logits: torch.Tensor, best: torch.Tensor, params: _Params) -> torch.Tensor:
    """As ``_draw_from_all`` with filters: looks at the candidates, and at all where they are few.

    Shapes: logits (N, V), best (N, 1); returns (N,) ids.
    """
    width = min(CANDIDATES, logits.shape[-1])
    values, ids = logits.topk(width, dim=-1)  # (N, K)
    scores = _scores(values, best, params)
    threshold = _threshold(logits, best, scores, params)
    order = ids.argsort(dim=-1)
    weights = torch.where(scores >= threshold, scores.exp(), 0.0).gather(1, order)
    result = ids.gather(1, order).gather(1, _place(weights, params.draw)[:, None])[:, 0]
    if width < logits.shape[-1]:
        # Tokens that were no candidates may be kept too.
        wide = (params.top_k > width) & (params.top_k < logits.shape[-1])
        few = (wide | (threshold <= scores[:, -1:]))[:, 0].nonzero()[:, 0].tolist()
        if few:
            result[few] = _draw_from_sorted(_rows(logits, few), best[few], params[few])
    return result


def _draw_from_sorted(logits: torch.Tensor, best: torch.Tensor, params: _Params) -> torch.Tensor:
    """As ``_draw_from_best``, but with every token a candidate."""
    scores = _scores(logits, best, params)
    ranked = scores.sort(dim=-1, descending=True).values
    threshold = _threshold(logits, best, ranked, params)
    return _place(torch.where(scores >= threshold, scores.exp(), 0.0), params.draw)


def _threshold(
    logits: torch.Tensor, best: torch.Tensor, ranked: torch.Tensor, params: _Params
) -> torch.Tensor:
    """The lowest score that each row keeps. Right where it is above the last candidate's, unless
    ``top_k`` is wider than the candidates.

    Shapes: logits (N, V), best (N, 1), ranked (N, K) scores of the candidates; returns (N, 1).
    """
    width = ranked.shape[-1]
    kth = ranked.gather(1, params.top_k.clamp(max=width) - 1)
    kth = kth.masked_fill_(params.top_k == logits.shape[-1], -torch.inf)
    minimum = torch.maximum(params.min_score, kth)
    kept = torch.where(ranked >= minimum, ranked.exp(), 0.0).cumsum(dim=-1, dtype=torch.float64)
    total = kept[:, -1:].clone()
    open_ended = ((minimum <= ranked[:, -1:]) & (params.top_p < 1))[:, 0].nonzero()[:, 0].tolist()
    if open_ended and width < logits.shape[-1]:
        scores = _scores(_rows(logits, open_ended), best[open_ended], params[open_ended])
        if minimum[open_ended].isfinite().any():
            scores.masked_fill_(scores < minimum[open_ended], -torch.inf)
        total[open_ended] = scores.exp_().sum(dim=-1, keepdim=True, dtype=torch.float64)
    last = torch.searchsorted(kept, params.top_p * total).clamp_(max=width - 1)
    nucleus = torch.where(params.top_p < 1, ranked.gather(1, last), -torch.inf)
    # Summed in another order, all that is kept may fall short of what is wanted by a rounding.
    return torch.maximum(nucleus, minimum)


def _place(weights: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    """Where each draw falls in its row's weights: never where the weight is 0.

    Shapes: weights (N, W) float32, draw (N, 1) float64 in [0, 1); returns (N,) indices.
    """
    missing = -weights.shape[-1] % BLOCK
    if missing:
        weights = torch.nn.functional.pad(weights, (0, missing))
    blocks = weights.view(len(weights), -1, BLOCK)  # (N, W / BLOCK, BLOCK)
    sums = blocks.sum(dim=-1, dtype=torch.float64)
    ends = torch.nn.functional.pad(sums.cumsum(dim=-1), (1, 0))
    point = draw * ends[:, -1:]
    block = torch.searchsorted(ends, point, right=True) - 1  # (N, 1)
    inside = blocks.gather(1, block[..., None].expand(-1, 1, BLOCK))[:, 0]
    cumulative = inside.cumsum(dim=-1, dtype=torch.float64)
    # A block's sum and its cumulative sum may differ by a rounding; stay inside.
    below_end = torch.nextafter(cumulative[:, -1:], torch.zeros_like(draw))
    point = torch.minimum(point - ends.gather(1, block), below_end)
    return (block * BLOCK + torch.searchsorted(cumulative, point, right=True))[:, 0]
