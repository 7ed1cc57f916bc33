"""Settings that cannot be: refused by name, before the worker has heard of them."""

from __future__ import annotations

from math import inf, nan

import pytest

from ds4trio.engine.admission import new_job
from ds4trio.engine.job import EngineRequest
from ds4trio.errors import RequestError
from ds4trio.request import SamplingParams


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1e-300, 1e39, 1e308, inf, nan])
def test_a_repetition_penalty_beyond_float32(penalty: float) -> None:
    request = EngineRequest((1,), sampling=SamplingParams(repetition_penalty=penalty))
    with pytest.raises(RequestError, match="repetition_penalty must be") as caught:
        new_job(request, context_tokens=8, vocab_size=8)
    assert caught.value.param == "repetition_penalty"


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 100.0])
def test_a_repetition_penalty_as_it_is_used(penalty: float) -> None:
    request = EngineRequest((1,), sampling=SamplingParams(repetition_penalty=penalty))
    assert new_job(request, context_tokens=8, vocab_size=8).request.sampling == request.sampling
