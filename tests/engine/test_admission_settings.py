"""Settings that cannot be: refused by name, before the worker has heard of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from ds4trio.engine.admission import StateMemory, new_job
from ds4trio.engine.job import EngineRequest
from ds4trio.errors import RequestError
from ds4trio.models.base import StateLayout
from ds4trio.request import SamplingParams

MEMORY = StateMemory(StateLayout({}), budget_bytes=0, max_running=1)

#: Beyond what float32 holds, as a float and as an integer of Python's.
HUGE = (1e39, 10**400, inf, nan)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("repetition_penalty", (-1.0, 0.0, 1e-300, *HUGE)),
        ("presence_penalty", (-1e39, -inf, *HUGE)),
        ("frequency_penalty", (-1e39, -inf, *HUGE)),
        ("temperature", (-0.1, *HUGE)),
        ("top_p", (-0.1, 1.1, *HUGE)),
        ("min_p", (-0.1, 1.1, *HUGE)),
        ("logit_bias", tuple({3: bias} for bias in (-1e39, -(10**400), *HUGE))),
        ("logit_bias", ({8: 1.0}, {-1: 1.0})),
    ],
)
def test_settings_beyond_their_bounds(name: str, values: tuple[object, ...]) -> None:
    for value in values:
        sampling = replace(SamplingParams(), **{name: value})  # type: ignore[arg-type]  # any field
        with pytest.raises(RequestError, match=name) as caught:
            new_job(EngineRequest((1,), sampling), 8, 8, MEMORY)
        assert caught.value.param == name


@pytest.mark.parametrize(
    "sampling",
    [
        *[SamplingParams(repetition_penalty=penalty) for penalty in (0.5, 1.0, 1.3, 100.0)],
        SamplingParams(presence_penalty=-5, frequency_penalty=100, temperature=10),
        SamplingParams(logit_bias={0: -inf, 1: -1e9, 7: 1e3}),
        SamplingParams(top_p=0, min_p=1, top_k=10**400, seed=10**400),
    ],
    ids=str,
)
def test_settings_as_programs_use_them(sampling: SamplingParams) -> None:
    request = EngineRequest((1,), sampling)
    assert new_job(request, 8, 8, MEMORY).request.sampling == sampling
