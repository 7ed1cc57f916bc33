"""Errors of OpenAI's endpoints, as the official client raises them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from asking import CHAT, COMPLETIONS, HELLO, each_openai, parse
from playing import Refusal, Server, openai_client

from ds4trio import errors
from ds4trio.events import TextDelta
from ds4trio.protocols.table import render_error

if TYPE_CHECKING:
    from ds4trio.protocols.wire import WireProtocol


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_client_raises_where_a_stream_breaks(endpoint: str) -> None:
    server = Server([TextDelta("Hi")], last=errors.EngineFailed("The worker died."))
    reader = openai_client(server)
    seen: list[str | None] = []

    def read() -> None:
        if endpoint == "chat":
            messages: Any = HELLO["messages"]
            chunks = reader.chat.completions.create(model="m", messages=messages, stream=True)
            seen.extend(chunk.choices[0].delta.content for chunk in chunks)
        else:
            parts = reader.completions.create(model="m", prompt="Hello", stream=True)
            seen.extend(part.choices[0].text for part in parts)

    with pytest.raises(openai.APIError, match=r"^The worker died\.$") as caught:
        read()
    assert "".join(filter(None, seen)) == "Hi"
    assert caught.value.type == "server_error"


@each_openai
def test_a_broken_stream_is_not_done(protocol: WireProtocol) -> None:
    words = parse(protocol).writer.fail(errors.EngineFailed("The worker died."))
    error = {"message": "The worker died.", "type": "server_error", "param": None, "code": None}
    assert [json.loads(event.data) for event in words] == [{"error": error}]


@pytest.mark.parametrize(
    ("error", "raised", "kind", "param", "code"),
    [
        (
            errors.RequestError("n: no", param="n", code="unsupported_parameter"),
            openai.BadRequestError,
            "invalid_request_error",
            "n",
            "unsupported_parameter",
        ),
        (
            errors.ContextOverflowError(9, 8),
            openai.BadRequestError,
            "invalid_request_error",
            "prompt",
            "context_length_exceeded",
        ),
        (
            errors.AuthenticationError("no"),
            openai.AuthenticationError,
            "authentication_error",
            None,
            "invalid_api_key",
        ),
        (
            errors.NotFoundError("no", param="model", code="model_not_found"),
            openai.NotFoundError,
            "not_found_error",
            "model",
            "model_not_found",
        ),
        (
            errors.BodyTooLargeError("no"),
            openai.APIStatusError,
            "invalid_request_error",
            None,
            None,
        ),
        (
            errors.OverloadedError("no", retry_after_s=1),
            openai.RateLimitError,
            "rate_limit_error",
            None,
            "rate_limit_exceeded",
        ),
        (errors.EngineFailed("no"), openai.InternalServerError, "server_error", None, None),
        (
            errors.DeadlineExceededError("no"),
            openai.InternalServerError,
            "server_error",
            None,
            "deadline_exceeded",
        ),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Exception) else "",
)
def test_errors_as_the_client_raises_them(
    error: errors.Ds4TrioError,
    raised: type[openai.APIStatusError],
    kind: str,
    param: str,
    code: str,
) -> None:
    with pytest.raises(raised) as caught:
        openai_client(Refusal(error)).completions.create(model="m", prompt="Hello")
    seen = caught.value
    assert (seen.type, seen.param, seen.code) == (kind, param, code)
    assert isinstance(seen.body, dict)
    assert seen.body["message"] == error.message


def test_a_prompt_that_is_too_long_is_blamed_on_the_field_that_holds_it() -> None:
    error = errors.ContextOverflowError(9, 8)
    assert json.loads(CHAT.render_error(error))["error"]["param"] == "messages"
    assert json.loads(COMPLETIONS.render_error(error))["error"]["param"] == "prompt"


@pytest.mark.parametrize("kind", errors.RequestError.__subclasses__(), ids=lambda k: k.__name__)
def test_no_error_of_the_asker_invites_to_try_again(kind: type[errors.RequestError]) -> None:
    error = errors.ContextOverflowError(9, 8) if kind is errors.ContextOverflowError else kind("no")
    said = json.loads(render_error(error))["error"]["type"]
    assert said in {"invalid_request_error", "authentication_error", "not_found_error"}
