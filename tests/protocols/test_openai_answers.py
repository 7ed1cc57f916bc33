"""Answers of OpenAI's endpoints, as the official ``openai`` package reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from ds4trio import errors
from ds4trio.events import Finished, PromptProgress, TextDelta, Usage
from ds4trio.protocols.openai_chat import OpenAIChat
from ds4trio.protocols.openai_completions import OpenAICompletions
from ds4trio.protocols.table import PROTOCOLS, render_error
from ds4trio.server import sse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openai.types import CompletionUsage

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent
    from ds4trio.protocols.wire import ResponseWriter, WireEvent, WireProtocol

CHAT = OpenAIChat(new_id=lambda: "0123abcd", now=lambda: 1_700_000_000.9)
COMPLETIONS = OpenAICompletions(new_id=lambda: "0123abcd", now=lambda: 1_700_000_000.9)
BODY: dict[str, dict[str, Any]] = {
    CHAT.path: {"messages": [{"role": "user", "content": "Hello"}]},
    COMPLETIONS.path: {"prompt": "Hello"},
}
USAGE = Usage(prompt_tokens=9, generated_tokens=2, cached_prompt_tokens=4)
USAGE_JSON = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "total_tokens": 11,
    "prompt_tokens_details": {"cached_tokens": 4},
}
EVENTS: list[GenerationEvent] = [
    PromptProgress(0, 9),
    PromptProgress(9, 9),
    TextDelta("Hi"),
    TextDelta(' "there"\n'),
    Finished("stop", USAGE),
]

each_protocol = pytest.mark.parametrize("protocol", [CHAT, COMPLETIONS], ids=lambda p: p.name)

counts = st.integers(0, 10**6)
answers = st.builds(
    lambda texts, reason, usage: [*texts, Finished(reason, usage)],
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(TextDelta)
        | st.builds(PromptProgress, counts, counts)
    ),
    st.sampled_from(["stop", "length"]),
    st.builds(Usage, counts, counts, counts),
)


def writer(protocol: WireProtocol, **fields: object) -> ResponseWriter:
    return protocol.parse(json.dumps(BODY[protocol.path] | fields).encode(), "served").writer


def streamed(
    protocol: WireProtocol, events: Sequence[GenerationEvent], **fields: object
) -> list[dict[str, Any]]:
    """The chunks of a stream, without the ``[DONE]`` that must end it."""
    w = writer(protocol, **fields)
    chunks = [event.data for event in [*w.start(), *w.feed(events)]]
    assert chunks.pop() == b"[DONE]"
    return [json.loads(chunk) for chunk in chunks]


class Server(httpx.BaseTransport):
    """Answers every request with the same events, without a network."""

    def __init__(
        self, events: Iterable[GenerationEvent], *, last: Ds4TrioError | None = None
    ) -> None:
        self.batches = [[event] for event in events]
        self.last = last

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        protocol = PROTOCOLS[request.url.path]
        parsed = protocol.parse(request.read(), "served")
        if not parsed.stream:
            body = parsed.writer.whole([event for batch in self.batches for event in batch])
            return httpx.Response(200, headers={"content-type": "application/json"}, content=body)
        return httpx.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=b"".join(self._stream(parsed.writer)),
        )

    def _stream(self, w: ResponseWriter) -> Iterable[bytes]:
        yield sse.encode(w.start())
        for batch in self.batches:
            yield sse.heartbeat(w.heartbeat())
            yield sse.encode(w.feed(batch))
        if self.last is not None:
            yield sse.encode(w.fail(self.last))


def client(transport: httpx.BaseTransport) -> openai.OpenAI:
    http = httpx.Client(transport=transport)
    # The package takes httpx's client too, but declares only its own.
    return openai.OpenAI(
        api_key="k", base_url="http://test/v1", http_client=cast("Any", http), max_retries=0
    )


def assert_exactly(model: BaseModel, sent: object) -> None:
    """Every field that was sent is one that the official type knows."""
    assert model.model_dump(mode="json", exclude_unset=True) == sent
    assert not list(unknown(model))


def unknown(model: BaseModel) -> Iterable[str]:
    yield from model.model_extra or ()
    for value in dict(model).values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, BaseModel):
                yield from unknown(item)


# --- exact shapes ---


def test_a_whole_chat_answer() -> None:
    assert json.loads(writer(CHAT, model="mine").whole(EVENTS)) == {
        "id": "chatcmpl-0123abcd",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "mine",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": 'Hi "there"\n', "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE_JSON,
    }


def test_a_whole_completion() -> None:
    assert json.loads(writer(COMPLETIONS).whole(EVENTS)) == {
        "id": "cmpl-0123abcd",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "served",
        "choices": [
            {"index": 0, "text": 'Hi "there"\n', "logprobs": None, "finish_reason": "stop"}
        ],
        "usage": USAGE_JSON,
    }


def test_the_chunks_of_a_chat_answer() -> None:
    chunks = streamed(CHAT, EVENTS)
    frames = [(c["id"], c["object"], c["created"], c["model"]) for c in chunks]
    assert set(frames) == {("chatcmpl-0123abcd", "chat.completion.chunk", 1_700_000_000, "served")}
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in [
            ({"role": "assistant", "content": "", "refusal": None}, None),
            ({"content": "Hi"}, None),
            ({"content": ' "there"\n'}, None),
            ({}, "stop"),
        ]
    ]


def test_the_chunks_of_a_completion() -> None:
    chunks = streamed(COMPLETIONS, EVENTS)
    frames = [(c["id"], c["object"], c["created"], c["model"]) for c in chunks]
    assert set(frames) == {("cmpl-0123abcd", "text_completion", 1_700_000_000, "served")}
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]
        for text, reason in [("Hi", None), (' "there"\n', None), ("", "stop")]
    ]


@each_protocol
def test_usage_comes_in_a_chunk_of_its_own_if_asked_for(protocol: WireProtocol) -> None:
    plain = streamed(protocol, EVENTS)
    *chunks, last = streamed(protocol, EVENTS, stream_options={"include_usage": True})
    assert chunks == [chunk | {"usage": None} for chunk in plain]
    assert last == {**plain[0], "choices": [], "usage": USAGE_JSON}


@each_protocol
def test_the_model_is_echoed_as_it_was_sent(protocol: WireProtocol) -> None:
    name = 'a "model"\n\u2028\u00e9'
    assert {chunk["model"] for chunk in streamed(protocol, EVENTS, model=name)} == {name}
    assert json.loads(writer(protocol, model=name).whole(EVENTS))["model"] == name


@pytest.mark.parametrize("path", PROTOCOLS)
def test_every_answer_has_an_id_of_its_own(path: str) -> None:
    ids = {json.loads(writer(PROTOCOLS[path]).whole(EVENTS))["id"] for _ in range(100)}
    assert len(ids) == 100


# --- the official types ---


@given(events=answers)
def test_chat_answers_are_of_the_official_types(events: list[GenerationEvent]) -> None:
    body = writer(CHAT).whole(events)
    assert_exactly(ChatCompletion.model_validate_json(body, strict=True), json.loads(body))
    for chunk in streamed(CHAT, events, stream_options={"include_usage": True}):
        assert_exactly(ChatCompletionChunk.model_validate(chunk, strict=True), chunk)


@given(events=answers)
def test_completions_are_of_the_official_types(events: list[GenerationEvent]) -> None:
    body = writer(COMPLETIONS).whole(events)
    assert_exactly(Completion.model_validate_json(body, strict=True), json.loads(body))
    for chunk in streamed(COMPLETIONS, events, stream_options={"include_usage": True}):
        for choice in chunk["choices"]:
            # The type is shared with the whole answer, so it has no null; the service sends it.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert_exactly(Completion.model_validate(chunk, strict=True), chunk)


@each_protocol
@given(events=answers)
def test_an_event_is_one_line_of_utf8(
    protocol: WireProtocol, events: list[GenerationEvent]
) -> None:
    w = writer(protocol)
    wire: list[WireEvent] = [*w.start(), *w.feed(events)]
    for event in wire:
        assert event.name is None
        assert b"\n" not in event.data
        assert b"\r" not in event.data
        event.data.decode("utf-8")


# --- the official client ---


@given(events=answers)
def test_the_client_reads_the_same_chat_answer_streamed_and_whole(
    events: list[GenerationEvent],
) -> None:
    chat = client(Server(events)).chat.completions
    ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    whole = chat.create(**ask)
    folded: ChatCompletion
    with chat.stream(**ask, stream_options={"include_usage": True}) as stream:
        try:
            folded = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            folded = cut.completion
    finished = events[-1]
    assert isinstance(finished, Finished)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    for answer in (whole, folded):
        (choice,) = answer.choices
        assert choice.message.role == "assistant"
        # The client's own folding makes null of an empty text.
        assert (choice.message.content or "") == text
        assert choice.finish_reason == finished.reason
        assert counted(answer.usage) == finished.usage


@given(events=answers)
def test_the_client_reads_the_same_completion_streamed_and_whole(
    events: list[GenerationEvent],
) -> None:
    completions = client(Server(events)).completions
    whole = completions.create(model="m", prompt="Hello")
    *chunks, last = completions.create(
        model="m", prompt="Hello", stream=True, stream_options={"include_usage": True}
    )
    finished = events[-1]
    assert isinstance(finished, Finished)
    (choice,) = whole.choices
    assert choice.text == "".join([chunk.choices[0].text for chunk in chunks])
    assert choice.finish_reason == chunks[-1].choices[0].finish_reason == finished.reason
    assert counted(whole.usage) == counted(last.usage) == finished.usage


def counted(usage: CompletionUsage | None) -> Usage:
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_client_raises_where_a_stream_breaks(endpoint: str) -> None:
    reader = client(Server([TextDelta("Hi")], last=errors.EngineFailed("The worker died.")))
    seen: list[str | None] = []

    def read() -> None:
        if endpoint == "chat":
            messages: Any = BODY[CHAT.path]["messages"]
            chunks = reader.chat.completions.create(model="m", messages=messages, stream=True)
            seen.extend(chunk.choices[0].delta.content for chunk in chunks)
        else:
            parts = reader.completions.create(model="m", prompt="Hello", stream=True)
            seen.extend(part.choices[0].text for part in parts)

    with pytest.raises(openai.APIError, match=r"^The worker died\.$") as caught:
        read()
    assert "".join(filter(None, seen)) == "Hi"
    assert caught.value.type == "server_error"


@each_protocol
def test_a_broken_stream_is_not_done(protocol: WireProtocol) -> None:
    w = writer(protocol)
    words = w.fail(errors.EngineFailed("The worker died."))
    assert [json.loads(event.data) for event in words] == [
        {
            "error": {
                "message": "The worker died.",
                "type": "server_error",
                "param": None,
                "code": None,
            }
        }
    ]


class Refusal(httpx.BaseTransport):
    def __init__(self, error: Ds4TrioError) -> None:
        self.error = error

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = PROTOCOLS[request.url.path].render_error(self.error)
        return httpx.Response(self.error.status, content=body)


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
    error: Ds4TrioError, raised: type[openai.APIStatusError], kind: str, param: str, code: str
) -> None:
    with pytest.raises(raised) as caught:
        client(Refusal(error)).completions.create(model="m", prompt="Hello")
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


def test_every_path_is_its_protocols_own() -> None:
    assert {path: p.name for path, p in PROTOCOLS.items()} == {
        "/v1/chat/completions": "chat",
        "/v1/completions": "completions",
    }
    assert all(path == p.path for path, p in PROTOCOLS.items())
