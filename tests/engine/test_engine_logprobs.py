"""Logprobs against torch's own log_softmax of what the model was told to think."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from engine_rig import open_rig, read_events
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.engine.job import (
    EndReason,
    EngineRequest,
    PrefillProgress,
    PromptToken,
    TokenEvent,
    TokensEnded,
)
from ds4trio.engine.logprobs import logprobs
from ds4trio.errors import ContextOverflowError, RequestError
from ds4trio.request import SamplingParams
from ds4trio.testing import VOCAB_SIZE, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.engine.job import EngineEvent, TopLogprobs


def noise(token_ids: Sequence[int]) -> torch.Tensor:
    """Logits that depend on all tokens so far."""
    seed = sum((n + 1) * token_id for n, token_id in enumerate(token_ids))
    return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


def expected(token_ids: Sequence[int], next_id: int, top: int) -> tuple[float, TopLogprobs]:
    """By torch, in float64, for the token after these."""
    truth = torch.log_softmax(noise(token_ids).double(), dim=-1)
    values, ids = truth.sort(descending=True)
    likeliest = zip(ids[:top].tolist(), values[:top].tolist(), strict=True)
    return float(truth[next_id]), tuple(likeliest)


def assert_close(
    found: TokenEvent | PromptToken, truth: tuple[float, TopLogprobs], tolerance: float = 1e-5
) -> None:
    assert found.logprob == pytest.approx(truth[0], abs=tolerance)
    assert [i for i, _ in found.top] == [i for i, _ in truth[1]]
    assert [x for _, x in found.top] == pytest.approx([x for _, x in truth[1]], abs=tolerance)


async def run(request: EngineRequest, chunk: int = 128, context: int = 200) -> list[EngineEvent]:
    model = ScriptedModel(logits=noise, context_tokens=context)
    async with (
        open_rig(model, prefill_chunk_tokens=chunk) as rig,
        rig.engine.submit(request) as stream,
    ):
        return await read_events(stream)


ODD = SamplingParams(seed=4, temperature=0.3, top_k=3, repetition_penalty=2.0, logit_bias={5: 50})


@pytest.mark.parametrize("sampling", [SamplingParams(seed=3), SamplingParams(temperature=0), ODD])
@pytest.mark.parametrize("top", [0, 1, 7, VOCAB_SIZE])
async def test_of_the_model_itself_whatever_the_settings(
    sampling: SamplingParams, top: int
) -> None:
    request = EngineRequest([1, 2, 3], sampling, max_tokens=12, logprobs=top)
    tokens = list(request.token_ids)
    for event in await run(request):
        if isinstance(event, TokenEvent):
            assert_close(event, expected(tokens, event.token_id, top))
            tokens.append(event.token_id)
    assert len(tokens) == 15


async def test_only_for_those_who_ask() -> None:
    requests = [EngineRequest([n], max_tokens=4, logprobs=n) for n in (1, 2)]
    requests.insert(1, EngineRequest([9], max_tokens=4))
    async with (
        open_rig(ScriptedModel(logits=noise)) as rig,
        rig.engine.submit_all(requests) as streams,
    ):
        for request, stream in zip(requests, streams, strict=True):
            for event in await read_events(stream):
                if isinstance(event, TokenEvent):
                    assert (event.logprob is None) == (request.logprobs is None)
                    assert len(event.top) == (request.logprobs or 0)


@pytest.mark.parametrize("chunk", [1, 2, 5, 9, 128])
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_of_the_prompt(chunk: int, max_tokens: int) -> None:
    prompt = [5, 3, 200, 7, 7, 1, 90, 2, 11]
    request = EngineRequest(prompt, max_tokens=max_tokens, logprobs=4, prompt_logprobs=True)
    events = await run(request, chunk)
    scored = [t for e in events if isinstance(e, PrefillProgress) for t in e.logprobs]
    assert [token.token_id for token in scored] == prompt
    assert scored[0] == PromptToken(5, None)
    for at in range(1, len(prompt)):
        assert_close(scored[at], expected(prompt[:at], prompt[at], 4))
    sampled = [event for event in events if isinstance(event, TokenEvent)]
    assert len(sampled) == max_tokens
    if sampled:
        assert_close(sampled[0], expected(prompt, sampled[0].token_id, 4))
    ended = events[-1]
    assert isinstance(ended, TokensEnded)
    assert ended.reason is EndReason.LENGTH


async def test_a_prompt_alone_may_fill_the_context() -> None:
    prompt = list(range(10))
    scoring = EngineRequest(prompt, max_tokens=0, prompt_logprobs=True)
    events = await run(scoring, context=10)
    assert sum(len(e.logprobs) for e in events if isinstance(e, PrefillProgress)) == 10
    with pytest.raises(ContextOverflowError):
        await run(scoring, context=9)
    *progress, ended = await run(EngineRequest(prompt, max_tokens=0), context=10)
    assert not any(isinstance(event, TokenEvent) for event in progress)
    assert isinstance(ended, TokensEnded)
    assert ended.reason is EndReason.LENGTH
    with pytest.raises(RequestError, match="max_tokens"):
        await run(EngineRequest(prompt, max_tokens=-1))
    with pytest.raises(RequestError, match="logprobs"):
        await run(EngineRequest(prompt, logprobs=-1))


@given(
    logits=st.lists(st.floats(-80, 80, width=32), min_size=3, max_size=3),
    token_id=st.integers(0, 2),
)
def test_any_logits(logits: list[float], token_id: int) -> None:
    ((value, top),) = logprobs(torch.tensor([logits]), [token_id], [3])
    truth = torch.log_softmax(torch.tensor(logits).double(), dim=-1)
    assert value == pytest.approx(float(truth[token_id]), abs=2e-5)
    assert [x for _, x in top] == sorted((x for _, x in top), reverse=True)
    assert {i for i, _ in top} == {0, 1, 2}
