"""Whatever one value of a request is, the answer is an answer, or a refusal in the protocol's own
shape that names the field; and the connection goes on."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from odd_values import BODIES, odd_requests
from serving import saying, serving

from ds4trio.testing import END_ID

if TYPE_CHECKING:
    from odd_values import OddRequest

JSON = {"content-type": "application/json"}
#: Of about 13 500 in all, which take minutes.
EACH_ROUTE = 60


def chosen(route: str) -> list[OddRequest]:
    """Others each time; all of them if asked for."""
    every = [odd for odd in odd_requests() if odd.route == route]
    if os.environ.get("DS4TRIO_TEST_ALL_ODD_VALUES"):
        return every
    return random.sample(every, min(EACH_ROUTE, len(every)))


@pytest.mark.parametrize("route", BODIES, ids=lambda route: route.removeprefix("/v1/"))
async def test_an_odd_value(route: str) -> None:
    async with serving(saying("Hi", END_ID)) as server, await server.connect() as client:
        await client.request("POST", route, json.dumps(BODIES[route]).encode(), JSON)
        status, body = await client.response()
        assert status == 200, body
        for odd in chosen(route):
            client.again()
            await client.request("POST", route, odd.body, JSON)
            status, body = await client.response()
            said = f"{odd.where} = {odd.value!r}: {status} {body[-300:]!r}"
            if status == 200:
                assert b'"error":{' not in body, said
                assert b"event: error" not in body, said
            else:
                assert status == 400, said
                check_refusal(odd, json.loads(body), said)


def check_refusal(odd: OddRequest, answer: dict[str, Any], said: str) -> None:
    error = answer["error"]
    assert error["type"] == "invalid_request_error", said
    if odd.route.startswith("/v1/messages"):
        assert answer["type"] == "error", said
        blamed = error["message"].partition(": ")[0]
    else:
        blamed = error["param"] or ""
    if not blamed.startswith(str(odd.path[0])):
        assert not odd.is_json or is_of_another(odd, blamed), said


def is_of_another(odd: OddRequest, blamed: str) -> bool:
    """Where two fields contradict each other, the other one may be blamed."""
    pairs = {("max_completion_tokens", "min_tokens"), ("max_tokens", "min_tokens")}
    pairs |= {("n", "best_of"), ("logprobs", "top_logprobs"), ("tools", "tool_choice")}
    pairs |= {("max_output_tokens", "min_tokens"), ("prompt", "n")}
    return any(odd.path[0] == field and blamed.startswith(other) for field, other in pairs)
