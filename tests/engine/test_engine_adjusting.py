"""Penalties, biases and forbidden tokens against their definitions, written out plainly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from engine_rig import open_rig, read_all, read_tokens, token_ids
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.engine.guide import Guide
from ds4trio.engine.job import EndReason, EngineRequest
from ds4trio.engine.penalties import Penalties
from ds4trio.errors import Ds4TrioError, RequestError
from ds4trio.request import SamplingParams
from ds4trio.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

V = 6
IDS = st.integers(0, V - 1)
PENALTY = st.sampled_from([0.0, 0.5, -1.5, 2.0])
SAMPLINGS = st.builds(
    SamplingParams,
    presence_penalty=PENALTY,
    frequency_penalty=PENALTY,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    logit_bias=st.dictionaries(IDS, st.floats(-100, 100)),
)


def penalised(
    logits: Sequence[float], prompt: Sequence[int], answer: Sequence[int], s: SamplingParams
) -> list[float]:
    """Recounts everything."""
    result = []
    for token_id, x in enumerate(logits):
        if token_id in (*prompt, *answer):
            x = x / s.repetition_penalty if x > 0 else x * s.repetition_penalty
        count = answer.count(token_id)
        x -= s.frequency_penalty * count + (s.presence_penalty if count else 0)
        result.append(x + s.logit_bias.get(token_id, 0))
    return result


@given(
    sampling=SAMPLINGS,
    prompt=st.lists(IDS, min_size=1),
    answer=st.lists(IDS),
    logits=st.lists(st.floats(-50, 50), min_size=V, max_size=V),
)
def test_penalties(
    sampling: SamplingParams, prompt: list[int], answer: list[int], logits: list[float]
) -> None:
    penalties = Penalties(sampling, prompt, torch.zeros(V))
    for length in range(len(answer) + 1):
        row = torch.tensor(logits)
        penalties.apply_(row)
        expected = torch.tensor(penalised(logits, prompt, answer[:length], sampling))
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-4)
        if length < len(answer):
            penalties.append(answer[length])
    plain = penalised(logits, prompt, answer, sampling) == logits
    assert plain or Penalties.are_in(sampling)


def rising(token_ids: Sequence[int]) -> list[float]:
    """The likeliest token is always 9, then 8, and so on, each one logit less."""
    return [float(i) if i < 10 else -100.0 for i in range(258)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [9, 9, 9, 9, 9]),
        ({"presence_penalty": 1.5}, [9, 8, 9, 9, 9]),  # 9, 8 | 7.5, 8 | 7.5, 6.5, 7 | ...
        (
            {"frequency_penalty": 0.6},
            [9, 9, 8, 9, 8],
        ),  # 9, 8 | 8.4, 8 | 7.8, 8 | 7.8, 7.4 | 7.2, 7.4
        ({"repetition_penalty": 1.2}, [8, 9, 9, 9, 9]),  # 7.5, 8 | 7.5, 6.7 | ...
        ({"logit_bias": {4: 100, 9: -100}}, [4, 4, 4, 4, 4]),
    ],
    ids=str,
)
async def test_settings_reach_the_tokens_of_their_sequence_alone(
    settings: dict[str, Any], expected: list[int]
) -> None:
    requests = [
        EngineRequest([9], sampling=SamplingParams(temperature=0, **some), max_tokens=5)
        for some in ({}, settings, {})
    ]
    async with (
        open_rig(ScriptedModel(logits=rising)) as rig,
        rig.engine.submit_all(requests) as streams,
    ):
        answers = [(await read_all(stream))[0] for stream in streams]
    assert answers == [[9] * 5, expected, [9] * 5]


async def test_settings_that_cannot_be() -> None:
    async with open_rig() as rig:
        for sampling in (
            SamplingParams(logit_bias={258: 1.0}),
            SamplingParams(logit_bias={-1: 1.0}),
            SamplingParams(repetition_penalty=0.0),
            SamplingParams(repetition_penalty=math.nan),
        ):
            with pytest.raises(RequestError):
                async with rig.engine.submit(EngineRequest([1], sampling=sampling)):
                    pass
        assert rig.counts == (0, 0, 0)


class Listed:
    """A constraint: so many tokens in all, each one of these."""

    def __init__(self, token_ids: Sequence[int], least: int, most: int, width: int = 258) -> None:
        self._allowed = np.zeros(width, dtype=np.bool_)
        self._allowed[list(token_ids)] = True
        self.least, self.most = least, most

    def new_matcher(self) -> ListedMatcher:
        return ListedMatcher(self, self._allowed)


class ListedMatcher:
    def __init__(self, constraint: Listed, allowed: NDArray[np.bool_]) -> None:
        self._constraint, self._allowed = constraint, allowed
        self._count = 0

    def allowed(self) -> NDArray[np.bool_]:
        return self._allowed if self._count < self._constraint.most else self._allowed & False

    @property
    def may_end(self) -> bool:
        return self._count >= self._constraint.least

    @property
    def is_complete(self) -> bool:
        return False  # a matcher may notice late, by allowing nothing

    def accept(self, token_id: int) -> None:
        assert self._allowed[token_id]
        self._count += 1


END, MARK, OTHER_MARK = 9, 20, 21


async def run(request: EngineRequest) -> tuple[list[int], EndReason]:
    async with open_rig(ScriptedModel(logits=rising)) as rig, rig.engine.submit(request) as stream:
        tokens, ended = await read_all(stream)
    return tokens, ended.reason


def greedy(constraint: Listed | None = None, **settings: Any) -> EngineRequest:
    sampling = SamplingParams(temperature=0)
    return EngineRequest([1], sampling, max_tokens=8, constraint=constraint, **settings)


STOP = frozenset({END, 400})  # one of them is beyond the vocabulary


@pytest.mark.parametrize(
    ("request_", "tokens", "reason"),
    [
        (greedy(stop_ids=STOP), [], EndReason.STOP_ID),
        (greedy(stop_ids=STOP, min_tokens=2), [8, 8], EndReason.STOP_ID),
        (greedy(Listed([2, 3], 4, 6)), [3] * 6, EndReason.COMPLETE),
        (greedy(Listed([2, 3], 4, 6), stop_ids=STOP), [3] * 4, EndReason.STOP_ID),
        (greedy(Listed([2, 3], 4, 6), stop_ids=STOP, min_tokens=5), [3] * 5, EndReason.STOP_ID),
        (greedy(Listed([2, 3], 4, 6), stop_ids=STOP, min_tokens=7), [3] * 6, EndReason.COMPLETE),
        (greedy(Listed([2, 3, END], 4, 6), stop_ids=STOP), [3] * 4, EndReason.STOP_ID),
        (greedy(Listed([2, 3], 0, 0), stop_ids=STOP), [], EndReason.STOP_ID),
        (greedy(Listed([2, 3], 0, 0)), [], EndReason.COMPLETE),
        (greedy(Listed([2, 3], 4, 9)), [3] * 8, EndReason.LENGTH),
        (greedy(Listed([2, 3], 4, 6, width=4)), [3] * 6, EndReason.COMPLETE),
        (greedy(Listed([2, 300], 4, 6, width=400)), [2] * 6, EndReason.COMPLETE),
    ],
)
async def test_what_may_come_next(
    request_: EngineRequest, tokens: list[int], reason: EndReason
) -> None:
    assert await run(request_) == (tokens, reason)


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        # Free while thinking, but for the stop id: it must answer.
        (greedy(Listed([2], 1, 2), stop_ids=STOP, thinking_end=(8,)), [8, 2]),
        (greedy(Listed([2], 1, 2), stop_ids=STOP, thinking_end=(8, 8)), [8, 8, 2]),
        (greedy(Listed([2], 1, 2), thinking_end=(MARK,), thinking_budget=3), [9, 9, 9, MARK, 2, 2]),
        (greedy(Listed([2], 1, 2), thinking_end=(MARK,), thinking_budget=0), [MARK, 2, 2]),
        (
            greedy(Listed([2], 1, 2), thinking_end=(9, MARK), thinking_budget=3),
            [9, 9, 9, MARK, 2, 2],
        ),
        (
            greedy(Listed([2], 1, 2), thinking_end=(MARK, OTHER_MARK), thinking_budget=1),
            [9, MARK, OTHER_MARK, 2, 2],
        ),
        (greedy(thinking_end=(MARK,), thinking_budget=2), [9, 9, MARK, 9, 9, 9, 9, 9]),
        (greedy(stop_ids=STOP, thinking_end=(MARK,), thinking_budget=2), []),
    ],
)
async def test_thinking(request_: EngineRequest, tokens: list[int]) -> None:
    assert (await run(request_))[0] == tokens


def test_a_guide_costs_nothing_where_it_is_not_needed() -> None:
    for request in (
        EngineRequest([1]),
        EngineRequest([1], stop_ids=STOP),
        EngineRequest([1], min_tokens=3),
        EngineRequest([1], thinking_end=(MARK,)),
    ):
        assert not Guide.is_needed(request)
    guide = Guide(EngineRequest([1], stop_ids=STOP, min_tokens=1))
    assert guide.may_forbid
    guide.append(5)
    assert not guide.may_forbid


async def test_a_constraint_that_fails_ends_its_sequence_alone() -> None:
    class Failing(Listed):
        def new_matcher(self) -> ListedMatcher:
            raise RequestError("no good")

    class Broken(Listed):
        def new_matcher(self) -> ListedMatcher:
            raise ZeroDivisionError

    requests = [
        greedy(),
        greedy(Failing([], 1, 1)),
        greedy(Listed([], 1, 1)),
        greedy(),
        greedy(Broken([], 1, 1)),
    ]
    async with (
        open_rig(ScriptedModel(logits=rising)) as rig,
        rig.engine.submit_all(requests) as streams,
    ):
        for index, words in ((1, "no good"), (2, "No token")):
            with pytest.raises(RequestError, match=words):
                await read_tokens(streams[index], 1)
        with pytest.raises(Ds4TrioError, match="could not be continued"):
            await read_tokens(streams[4], 1)
        for index in (0, 3):
            events = await read_tokens(streams[index], 8)
            assert token_ids(events) == [9] * 8
