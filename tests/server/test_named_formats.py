"""An output format that cannot be used is refused by the name that the protocol has for it."""

from __future__ import annotations

from typing import Any

import pytest
from serving import saying, serving

from ds4trio.testing import END_ID

BAD: dict[str, Any] = {"type": "string", "pattern": "("}
OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": BAD}}
HELLO = [{"role": "user", "content": "Hi"}]
CHAT = ("/v1/chat/completions", {"messages": HELLO})
COMPLETIONS = ("/v1/completions", {"prompt": "Once"})
MESSAGES = ("/v1/messages", {"messages": HELLO, "max_tokens": 9})
RESPONSES = ("/v1/responses", {"input": "Hi"})
OPENAI = (CHAT, COMPLETIONS, RESPONSES)

#: Fields, the path to blame, and where.
CASES: list[tuple[dict[str, Any], str, tuple[tuple[str, dict[str, Any]], ...]]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": BAD}}},
        "response_format.json_schema.schema",
        OPENAI,
    ),
    (
        {"response_format": {"type": "json_object", "schema": BAD}},
        "response_format.schema",
        OPENAI,
    ),
    ({"guided_json": BAD}, "guided_json", OPENAI),
    ({"guided_regex": "("}, "guided_regex", OPENAI),
    ({"guided_choice": [str(n) for n in range(2000)]}, "guided_choice", OPENAI),
    ({"guided_grammar": "nothing"}, "guided_grammar", OPENAI),
    ({"structured_outputs": {"json": BAD}}, "structured_outputs.json", OPENAI),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", OPENAI),
    ({"structured_outputs": {"grammar": "nothing"}}, "structured_outputs.grammar", OPENAI),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": BAD}}},
        "text.format.schema",
        (RESPONSES,),
    ),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": BAD}}},
        "output_config.format.schema",
        (MESSAGES,),
    ),
    (
        {"output_format": {"type": "json_schema", "schema": BAD}},
        "output_format.schema",
        (MESSAGES,),
    ),
]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        pytest.param(path, least | fields, param, id=f"{path[4:]} {param}")
        for fields, param, endpoints in CASES
        for path, least in endpoints
    ],
)
async def test_a_format_that_cannot_be_used(path: str, body: dict[str, Any], param: str) -> None:
    async with serving(saying("Hi", END_ID)) as server, await server.connect() as client:
        await client.post(path, body)
        status, answer = await client.json()
        assert status == 400, answer
        error = answer["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"{param}: ")
        if path != MESSAGES[0]:
            assert error["param"] == param
        client.again()
        await client.request("GET", "/health")
        assert (await client.response())[0] == 200
