"""The sampler against the definitions, in float64 and one row at a time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from ds4trio.engine.sampler import CANDIDATES, GREEDY_TEMPERATURE, sample
from ds4trio.request import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of a border: closer, float32 may fall on its other side.
MARGIN = 1e-5


class TooClose(Exception):
    """To a border: the definition in float32 may differ."""


def apart(a: float, b: float) -> None:
    if abs(a - b) < MARGIN:
        raise TooClose


@dataclass
class Row:
    sampling: SamplingParams
    rng: random.Random = field(default_factory=lambda: random.Random(0))


class Fixed(random.Random):
    """Draws one number for ever."""

    def __init__(self, draw: float) -> None:
        super().__init__()
        self._draw = draw

    def random(self) -> float:
        return self._draw


def weights_by_definition(logits: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """Unnormalised probability of each token that may be chosen."""
    best = max(logits)
    score = {i: (x - best) / params.temperature for i, x in enumerate(logits) if x > -math.inf}
    ranked = sorted(score.values(), reverse=True)
    kth = ranked[params.top_k - 1] if 0 < params.top_k < len(ranked) else -math.inf
    kept = {}
    for token_id, x in score.items():
        if 0 < params.min_p < 1:
            apart(math.exp(x), params.min_p)
        if x >= kth and math.exp(x) >= params.min_p:
            kept[token_id] = math.exp(x)
    wanted, mass, last = params.top_p * sum(kept.values()), 0.0, 0.0
    if params.top_p < 1:
        for last in sorted(kept.values(), reverse=True):
            mass += last
            apart(mass, wanted)
            if mass >= wanted:
                break
    return {token_id: weight for token_id, weight in kept.items() if weight >= last}


def token_by_definition(logits: Sequence[float], row: Row) -> int | None:
    if any(math.isnan(x) for x in logits) or math.isinf(max(logits)):
        return None
    if row.sampling.temperature < GREEDY_TEMPERATURE:
        return logits.index(max(logits))
    weights = weights_by_definition(logits, row.sampling)
    point, mass = row.rng.random() * sum(weights.values()), 0.0
    for token_id, weight in sorted(weights.items()):
        mass += weight
        apart(mass, point)
        if mass > point:
            return token_id
    return max(weights)


# Few distinct values, so that there are many ties.
LOGITS = st.integers(-8, 8).map(lambda x: x / 2)
ODD_LOGITS = LOGITS | st.sampled_from([-math.inf, math.inf, math.nan])
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.just(1.0) | st.floats(0.0, 1.0),
    top_k=st.integers(0, 9),
    min_p=st.just(0.0) | st.floats(0.0, 1.0),
)


@given(data=st.data(), vocabulary=st.integers(1, 7), count=st.integers(1, 6))
def test_follows_the_definition(data: st.DataObject, vocabulary: int, count: int) -> None:
    values = LOGITS if data.draw(st.booleans()) else ODD_LOGITS
    table = data.draw(
        st.lists(
            st.lists(values, min_size=vocabulary, max_size=vocabulary),
            min_size=count,
            max_size=count,
        )
    )
    rows = [Row(data.draw(PARAMS), random.Random(seed)) for seed in range(count)]
    fresh = [replace(row, rng=random.Random(seed)) for seed, row in enumerate(rows)]
    try:
        expected = [token_by_definition(*pair) for pair in zip(table, fresh, strict=True)]
    except TooClose:
        reject()
    assert sample(torch.tensor(table), rows) == expected


WIDE_PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_p=st.just(1.0) | st.floats(0.05, 0.999),
    top_k=st.sampled_from([0, 1, 40, CANDIDATES - 1, CANDIDATES, CANDIDATES + 1, 400, 599, 900]),
    min_p=st.just(0.0) | st.floats(0.0, 0.5),
)


@settings(max_examples=60)
@given(
    params=st.lists(WIDE_PARAMS, min_size=1, max_size=4),
    seed=st.integers(0, 999),
    coarse=st.booleans(),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
)
def test_a_vocabulary_wider_than_the_candidates(
    params: list[SamplingParams], seed: int, coarse: bool, spread: float
) -> None:
    """``coarse``: rounded, so that many tokens are equal, also at the last candidate."""
    noise = random.Random(seed)
    table = [[noise.gauss(0, spread) for _ in range(600)] for _ in params]
    if coarse:
        table = [[round(x, 1) for x in logits] for logits in table]
    rows = [Row(p, random.Random(seed)) for p in params]
    try:
        expected = [
            token_by_definition(logits, Row(p, random.Random(seed)))
            for logits, p in zip(table, params, strict=True)
        ]
    except TooClose:
        reject()
    assert sample(torch.tensor(table, dtype=torch.float32), rows) == expected


def test_the_ends_of_a_wide_nucleus() -> None:
    values = [math.sin(i) * 2 for i in range(4 * CANDIDATES)]
    params = SamplingParams(top_p=0.9, top_k=600)
    weights = weights_by_definition(values, params)
    assert CANDIDATES < len(weights) < 600
    ends = [Row(params, Fixed(draw)) for draw in (0.0, 1 - 2**-53)]
    assert sample(torch.tensor([values, values]), ends) == [min(weights), max(weights)]


@pytest.mark.parametrize(
    ("params", "support"),
    [
        (SamplingParams(), {0, 1, 2, 3, 4}),
        (SamplingParams(top_k=1), {2}),
        (SamplingParams(top_k=2), {1, 2, 4}),  # 1 and 4 are equal
        (SamplingParams(top_p=0.0), {2}),
        (SamplingParams(top_p=0.5), {2}),
        (SamplingParams(top_p=0.6), {1, 2, 4}),
        (SamplingParams(min_p=0.2), {1, 2, 4}),
        (SamplingParams(min_p=0.1), {0, 1, 2, 4}),
        (SamplingParams(min_p=0.2, temperature=2.0), {0, 1, 2, 3, 4}),
        (SamplingParams(min_p=1.0), {2}),
        # top_p is of what the others left: 8/12 of it is the best token's.
        (SamplingParams(top_k=2, top_p=0.66), {2}),
    ],
    ids=str,
)
def test_who_can_be_chosen(params: SamplingParams, support: set[int]) -> None:
    logits = torch.tensor([1.0, 2.0, 8.0, 0.5, 2.0]).log()  # of 13.5
    rows = [Row(params, Fixed(draw / 1000)) for draw in range(1000)]
    assert set(sample(logits.expand(1000, 5), rows)) == support


def test_chosen_in_proportion() -> None:
    logits = torch.tensor([1.0, 2.0, 5.0, 0.0]).log()
    rows = [Row(SamplingParams(), Fixed((draw + 0.5) / 800)) for draw in range(800)]
    drawn = sample(logits.expand(800, 4), rows)
    assert [drawn.count(i) for i in range(4)] == [100, 200, 500, 0]


def test_temperature_sharpens() -> None:
    logits = torch.tensor([1.0, 3.0]).log()
    rows = [Row(SamplingParams(temperature=0.5), Fixed((n + 0.5) / 1000)) for n in range(1000)]
    assert sample(logits.expand(1000, 2), rows).count(0) == 100  # 1 : 9


@pytest.mark.parametrize("temperature", [0.0, 1e-30, -1.0, math.nan])
def test_greedy_takes_the_lowest_of_equals(temperature: float) -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [3.0, 0.0, 3.0]])
    assert sample(logits, [Row(SamplingParams(temperature=temperature))] * 2) == [1, 0]


def test_extreme_logits_do_not_overflow() -> None:
    logits = torch.tensor([[3e38, -3e38, -math.inf]])
    assert sample(logits, [Row(SamplingParams(temperature=GREEDY_TEMPERATURE))]) == [0]


def test_unusable_rows_disturb_nobody() -> None:
    logits = torch.zeros(4, 5)
    logits[1, 3] = math.nan
    logits[2] = -math.inf
    rows = [Row(SamplingParams(), random.Random(5)) for _ in range(4)]
    first, *broken, last = sample(logits, rows)
    assert broken == [None, None]
    assert first == last == int(random.Random(5).random() * 5)


def test_logits_are_left_as_they_are() -> None:
    logits = torch.tensor([[0.0, 1.0]])
    for temperature in (0, 1):
        sample(logits, [Row(SamplingParams(temperature=temperature, top_p=0.9))])
    assert logits.tolist() == [[0.0, 1.0]]


@given(seed=st.integers(), others=st.lists(PARAMS, max_size=4), params=PARAMS)
def test_neighbours_do_not_matter(
    seed: int, others: list[SamplingParams], params: SamplingParams
) -> None:
    """Also where equal logits (bfloat16 makes many) stand at a filter's border."""
    values = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 400, generator=values).bfloat16().float()
    alone = sample(logits[:1], [Row(params, random.Random(seed))])
    rows = [Row(params, random.Random(seed)), *(Row(p, random.Random(1)) for p in others)]
    assert sample(logits[: len(rows)], rows)[:1] == alone


@pytest.mark.parametrize("top_k", [2**63 - 1, 2**63, 2**64])
def test_a_top_k_beyond_all_numbers_means_all_tokens(top_k: int) -> None:
    row = Row(SamplingParams(temperature=1, top_k=top_k), rng=Fixed(0.6))
    assert sample(torch.zeros(1, 4), [row]) == [2]
