"""Speculation changes when tokens come, and nothing else: against the same worker without it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import product
from math import exp, prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
from guessing import GuessingModel, V, run, scores, told
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.engine.job import EndReason, EngineRequest
from ds4trio.engine.messages import Job
from ds4trio.request import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ds4trio.engine.messages import StepReport

IDS = st.integers(0, V - 1)


class NoRepeats:
    """A constraint: no token twice in a row, and an end only after an even one; at most 9."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        self._heard = heard
        self._last: int | None = None
        self._count = 0

    def new_matcher(self) -> NoRepeats:
        return NoRepeats(self._heard)

    def allowed(self) -> NDArray[np.bool_]:
        return np.array([token_id != self._last for token_id in range(V)])

    @property
    def may_end(self) -> bool:
        return self._last is not None and self._last % 2 == 0

    @property
    def is_complete(self) -> bool:
        return self._count == 9

    def accept(self, token_id: int) -> None:
        assert token_id != self._last
        self._last = token_id
        self._count += 1
        self._heard()


class GreedyAfter:
    """Greedy where the token before is one of these."""

    def __init__(self, ids: frozenset[int]) -> None:
        self._ids = ids
        self.is_greedy = False

    def append(self, token_id: int) -> None:
        self.is_greedy = token_id in self._ids


SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 3.0]),
    top_k=st.sampled_from([0, 2]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 1000),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    logit_bias=st.dictionaries(IDS, st.floats(-3, 3), max_size=2),
)
REQUESTS = st.builds(
    EngineRequest,
    token_ids=st.lists(IDS, min_size=1, max_size=11).map(tuple),
    sampling=SAMPLINGS,
    max_tokens=st.integers(1, 20),
    min_tokens=st.integers(0, 5),
    stop_ids=st.frozensets(IDS, max_size=2),
    logprobs=st.sampled_from([None, 0, 2]),
    prompt_logprobs=st.booleans(),
    constraint=st.sampled_from([None, NoRepeats()]),
    thinking_end=st.sampled_from([(), (3,), (1, 2)]),
    thinking_budget=st.sampled_from([None, 4]),
    new_greedy_spans=st.frozensets(IDS, min_size=1, max_size=4).map(
        lambda ids: partial(GreedyAfter, ids)
    ),
)


def new_job(request: EngineRequest, max_tokens: int | None = None) -> Job:
    return Job(request, max_tokens or request.max_tokens or 0, submitted_at=0.0)


def counted(reports: list[StepReport]) -> tuple[int, int]:
    """Tokens drafted and accepted."""
    return sum(r.drafted_tokens for r in reports), sum(r.accepted_tokens for r in reports)


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=5),
    drafts=st.integers(1, 4),
    error=st.sampled_from([0.0, 0.3, 5.0]),
    max_running=st.integers(1, 5),
    chunk=st.integers(1, 12),
)
@settings(max_examples=60)
def test_answers_and_states_are_those_without_it(
    requests: list[EngineRequest], drafts: int, error: float, max_running: int, chunk: int
) -> None:
    plain, guessing = GuessingModel(), GuessingModel(drafts, error)
    outcomes, spans = [], []
    for model in (plain, guessing):
        jobs = [new_job(request) for request in requests]
        reports = run(model, jobs, max_running=max_running, chunk=chunk)
        spans.append(counted(reports))
        outcomes.append([(tokens, end.reason) for tokens, end in (told(reports, j) for j in jobs)])
    assert outcomes[0] == outcomes[1]
    assert [state.tokens for state in plain.states] == [state.tokens for state in guessing.states]
    assert spans[0] == (0, 0)
    drafted, accepted = spans[1]
    assert accepted <= drafted


def test_a_drafter_that_is_always_right_saves_forwards() -> None:
    request = EngineRequest((1, 2, 3), SamplingParams(seed=4), max_tokens=20)
    model = GuessingModel(drafts=3, error=0.0)
    reports = run(model, [new_job(request)])
    # After the prompt's token, 19 by fours. Of the last four, one is not guessed any more.
    assert model.forwards == 1 + 5
    assert counted(reports) == (4 * 3 + 2, 4 * 3 + 2)


def test_near_the_end_of_the_context_nothing_is_guessed_beyond_it() -> None:
    model = GuessingModel(drafts=4, error=0.0, context_tokens=7)  # which it checks itself
    job = new_job(EngineRequest((1, 2, 3)), max_tokens=4)
    assert len(told(run(model, [job]), job)[0]) == 4


def test_samples_are_distributed_as_the_model_says() -> None:
    """All answers of three tokens, counted, against their probabilities multiplied out."""
    prompt, count = (2, 5), 3000
    jobs = [
        new_job(EngineRequest(prompt, SamplingParams(seed=seed), max_tokens=3))
        for seed in range(count)
    ]
    reports = run(GuessingModel(drafts=2, error=0.5), jobs, max_running=count, chunk=10**6)
    found: Counter[tuple[int, ...]] = Counter(
        tuple(token[0] for token in told(reports, job)[0]) for job in jobs
    )
    drafted, accepted = counted(reports)
    assert 0.2 < accepted / drafted < 0.9  # so both ways are taken

    def chance(history: tuple[int, ...], token_id: int) -> float:
        logits = scores(history)
        return exp(logits[token_id]) / sum(map(exp, logits))

    statistic = 0.0
    for answer in product(range(V), repeat=3):
        expected = count * prod(chance((*prompt, *answer[:i]), answer[i]) for i in range(3))
        statistic += (found[answer] - expected) ** 2 / expected
    # Chi-squared with 215 degrees of freedom: its mean and six standard deviations.
    assert statistic < 215 + 6 * (2 * 215) ** 0.5


@given(
    drafts=st.integers(1, 3),
    error=st.sampled_from([0.0, 1.0]),
    where=st.sampled_from(["draft", "advance", "logits", "accept"]),
    time=st.integers(1, 8),
    reason=st.sampled_from([EndReason.CANCELLED, EndReason.STOPPED]),
)
@settings(max_examples=60)
def test_leaving_at_any_moment_leaves_the_state_with_what_was_emitted(
    drafts: int, error: float, where: str, time: int, reason: EndReason
) -> None:
    """While guesses are made, checked, or taken one after the other."""
    calls = Counter[str]()

    def called(name: str) -> None:
        calls[name] += 1
        if (name, calls[name]) == (where, time):
            victim.end(reason, 0.0)

    sampling = SamplingParams(temperature=0.5, seed=1)
    held = NoRepeats(lambda: called("accept"))
    victim = new_job(EngineRequest((1, 2, 3, 4, 5), sampling, constraint=held), max_tokens=30)
    neighbour = EngineRequest((5, 1), sampling, max_tokens=20)
    other = new_job(neighbour)
    nexts: list[Job] = []

    def then(reports: list[StepReport]) -> list[Job]:
        emitted = [token[0] for token in told(reports, victim)[0]]
        nexts.append(new_job(EngineRequest((1, 2, 3, 4, 5, *emitted, 0), sampling, max_tokens=5)))
        return nexts

    model = GuessingModel(drafts, error, called)
    reports = run(model, [victim, other], then=then, cache=True)
    tokens, ended = told(reports, victim)
    log = [1, 2, 3, 4, 5, *(token[0] for token in tokens)]
    state = model.states[0].tokens
    assert state == log[: len(state)]
    # Of what was emitted only the last token may be still to compute, as it is without guesses.
    assert len(log) - len(state) <= (1 if tokens else 5)
    assert ended.report.generated_tokens == len(tokens)
    assert told(reports, nexts[0])[1].report.cached_prompt_tokens == len(state)
    # Neither a neighbour nor who goes on from what the cache has kept is told anything else.
    for job in (other, *nexts):
        alone = new_job(job.request)
        assert told(reports, job)[0] == told(run(GuessingModel(), [alone]), alone)[0]


@pytest.mark.parametrize("error", [0.0, 5.0])
def test_a_flag_between_two_tokens_of_one_forward_keeps_the_second_back(error: float) -> None:
    seen: list[int] = []

    def heard() -> None:
        seen.append(1)
        if len(seen) == 2:
            job.end(EndReason.CANCELLED, 0.0)

    job = new_job(EngineRequest((1,), constraint=NoRepeats(heard)), max_tokens=30)
    model = GuessingModel(4, error)
    tokens, ended = told(run(model, [job]), job)
    assert ended.reason is EndReason.CANCELLED
    assert len(tokens) == 2
    assert model.states[0].tokens == [1, tokens[0][0]]
