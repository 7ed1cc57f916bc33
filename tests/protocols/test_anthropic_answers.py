"""Answers of Anthropic's endpoint: exact shapes, and as the official ``anthropic`` package reads
them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from asking import HELLO, MESSAGES, parse
from generations import calls_of, generations, text_of, thinking_of
from hypothesis import given
from playing import Refusal, Server, anthropic_client, assert_exactly
from pydantic import TypeAdapter

from ds4trio import errors
from ds4trio.events import (
    Finished,
    GenerationEvent,
    PromptProgress,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
ASK: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": HELLO["messages"]}
USAGE = Usage(prompt_tokens=9, generated_tokens=5, cached_prompt_tokens=4, thinking_tokens=2)
USAGE_JSON = {
    "input_tokens": 5,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 4,
    "output_tokens": 5,
    "output_tokens_details": {"thinking_tokens": 2},
}
EVENTS: list[GenerationEvent] = [
    PromptProgress(0, 9),
    PromptProgress(9, 9),
    ThinkingDelta("Hm"),
    ThinkingDelta("."),
    TextDelta("Let me "),
    TextDelta("see."),
    ToolCallStarted(0, "call_a", "Bash"),
    ToolArgumentsDelta(0, '{"command":'),
    ToolArgumentsDelta(0, '"ls"}'),
    ToolCallEnded(0),
    ToolCallStarted(1, "call_b", "Read"),
    ToolCallEnded(1),
    Finished("tool_calls", USAGE),
]


def streamed(events: Sequence[GenerationEvent]) -> list[dict[str, Any]]:
    w = parse(MESSAGES, stream=True).writer
    wire = [*w.start(), *w.feed(events)]
    sent: list[dict[str, Any]] = [json.loads(event.data) for event in wire]
    assert [event.name for event in wire] == [event["type"] for event in sent]
    return sent


def whole(events: Sequence[GenerationEvent], **fields: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(parse(MESSAGES, **fields).writer.whole(events))
    return answer


# --- exact shapes ---


def test_a_whole_answer() -> None:
    assert whole(EVENTS) == {
        "id": "msg_0123abcd",
        "type": "message",
        "role": "assistant",
        "model": "served",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "msg_0123abcd"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "call_a", "name": "Bash", "input": {"command": "ls"}},
            {"type": "tool_use", "id": "call_b", "name": "Read", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE_JSON,
    }


def test_the_events_of_an_answer() -> None:
    start, *events, delta, stop = streamed(EVENTS)
    assert start == {
        "type": "message_start",
        "message": {
            "id": "msg_0123abcd",
            "type": "message",
            "role": "assistant",
            "model": "served",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 9,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        },
    }

    def begun(index: int, **block: object) -> dict[str, object]:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def more(index: int, **delta: object) -> dict[str, object]:
        return {"type": "content_block_delta", "index": index, "delta": delta}

    def ended(index: int) -> dict[str, object]:
        return {"type": "content_block_stop", "index": index}

    assert events == [
        begun(0, type="thinking", thinking="", signature=""),
        more(0, type="thinking_delta", thinking="Hm"),
        more(0, type="thinking_delta", thinking="."),
        more(0, type="signature_delta", signature="msg_0123abcd"),
        ended(0),
        begun(1, type="text", text=""),
        more(1, type="text_delta", text="Let me "),
        more(1, type="text_delta", text="see."),
        ended(1),
        begun(2, type="tool_use", id="call_a", name="Bash", input={}),
        more(2, type="input_json_delta", partial_json='{"command":'),
        more(2, type="input_json_delta", partial_json='"ls"}'),
        ended(2),
        begun(3, type="tool_use", id="call_b", name="Read", input={}),
        ended(3),
    ]
    assert delta == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": USAGE_JSON,
    }
    assert stop == {"type": "message_stop"}


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (Finished("stop", USAGE), "end_turn", None),
        (Finished("length", USAGE), "max_tokens", None),
        (Finished("stop", USAGE, "END"), "stop_sequence", "END"),
        (Finished("tool_calls", USAGE), "tool_use", None),
    ],
)
def test_reasons_for_the_end(end: Finished, reason: str, sequence: str | None) -> None:
    ending = {"stop_reason": reason, "stop_sequence": sequence}
    assert streamed([end])[-2]["delta"] == ending
    assert {name: whole([end])[name] for name in ending} == ending


def test_an_answer_without_a_word_has_no_blocks() -> None:
    assert whole([Finished("stop", USAGE)])["content"] == []
    assert [event["type"] for event in streamed([Finished("stop", USAGE)])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("arguments", ['{"a', "[1]", "NaN", '{"a":1} x', "", '{"a":' + "[" * 9999])
def test_a_call_that_was_cut_off_has_no_input(arguments: str) -> None:
    events: list[GenerationEvent] = [
        ToolCallStarted(0, "call_a", "Bash"),
        ToolArgumentsDelta(0, arguments),
        Finished("length", USAGE),
    ]
    assert whole(events)["content"][0]["input"] == {}
    assert [event["type"] for event in streamed(events)[-3:]] == [
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_arguments_are_passed_on_as_they_are() -> None:
    huge = '{ "n" : 123456789012345678901234567890.10 }'
    events: list[GenerationEvent] = [
        ToolCallStarted(0, "call_a", "f"),
        ToolArgumentsDelta(0, huge),
        ToolCallEnded(0),
        Finished("tool_calls", USAGE),
    ]
    assert huge.encode() in parse(MESSAGES).writer.whole(events)


def test_a_heartbeat_is_a_ping_also_before_the_message_starts() -> None:
    w = parse(MESSAGES).writer
    assert w.start() == []
    beat = w.heartbeat()
    assert beat is not None
    assert (beat.name, beat.data) == ("ping", b'{"type":"ping"}')
    (start,) = w.feed([PromptProgress(0, 9)])
    assert start.name == "message_start"


def test_the_model_is_echoed_as_it_was_sent() -> None:
    assert whole([Finished("stop", USAGE)], model="claude-x")["model"] == "claude-x"


# --- the official types and the official client ---


@given(events=generations())
def test_answers_are_of_the_official_types(events: list[GenerationEvent]) -> None:
    body = parse(MESSAGES).writer.whole(events)
    assert_exactly(Message.model_validate_json(body, strict=True), json.loads(body))
    for event in streamed(events):
        assert_exactly(EVENT.validate_python(event, strict=True), event)


@given(events=generations())
def test_blocks_begin_and_end_once_in_order(events: list[GenerationEvent]) -> None:
    open_: set[int] = set()
    begun = 0
    start, *between, delta, stop = streamed(events)
    assert [event["type"] for event in (start, delta, stop)] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    for event in between:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == begun
                begun += 1
                open_.add(event["index"])
            case "content_block_delta":
                assert event["index"] in open_
            case "content_block_stop":
                open_.remove(event["index"])
            case other:
                pytest.fail(other)
    assert not open_


@given(events=generations())
def test_the_client_reads_the_same_streamed_and_whole(events: list[GenerationEvent]) -> None:
    messages = anthropic_client(Server(events)).messages
    answer: Message = messages.create(**ASK)
    with messages.stream(**ASK) as stream:
        folded: Message = stream.get_final_message()
    last = events[-1]
    assert isinstance(last, Finished)
    assert answer.stop_reason == folded.stop_reason
    assert answer.usage.model_dump() == folded.usage.model_dump()
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == (
        last.usage.prompt_tokens
    )
    assert answer.usage.output_tokens == last.usage.generated_tokens
    blocks, streamed_blocks = (
        [block.model_dump(exclude_unset=True) for block in message.content]
        for message in (answer, folded)
    )
    for block in streamed_blocks:
        block.pop("parsed_output", None)
    assert (
        says(blocks)
        == says(streamed_blocks)
        == (
            text_of(events),
            thinking_of(events),
            [(id_, name) for id_, name, _ in calls_of(events)],
        )
    )
    inputs = [block["input"] for block in blocks if block["type"] == "tool_use"]
    assert inputs == [whole_object(text) for _, _, text in calls_of(events)]
    if last.reason != "length":  # of a cut call's input the client makes something
        assert blocks == streamed_blocks


def says(blocks: list[dict[str, Any]]) -> tuple[str, str, list[tuple[str, str]]]:
    """Text, thinking, and the calls' ids and names."""
    return (
        "".join([block["text"] for block in blocks if block["type"] == "text"]),
        "".join([block["thinking"] for block in blocks if block["type"] == "thinking"]),
        [(block["id"], block["name"]) for block in blocks if block["type"] == "tool_use"],
    )


def whole_object(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def test_a_count_is_of_the_official_type() -> None:
    body = MESSAGES.render_count_tokens(9)
    count = MessageTokensCount.model_validate_json(body, strict=True)
    assert_exactly(count, {"input_tokens": 9})


# --- errors ---


def test_the_client_raises_where_a_stream_breaks() -> None:
    server = Server(
        [PromptProgress(0, 9), TextDelta("Hi")], last=errors.EngineFailed("The worker died.")
    )
    seen: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        anthropic_client(server).messages.stream(**ASK) as stream,
    ):
        seen.extend(stream.text_stream)
    assert seen == ["Hi"]
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "api_error", "message": "The worker died."},
    }


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.RequestError("n: no", param="n"), 400, "invalid_request_error"),
        (errors.AuthenticationError("no"), 401, "authentication_error"),
        (errors.NotFoundError("no"), 404, "not_found_error"),
        (errors.MethodNotAllowedError("no"), 405, "invalid_request_error"),
        (errors.ConflictError("no"), 409, "invalid_request_error"),
        (errors.BodyTooLargeError("no"), 413, "request_too_large"),
        (errors.OverloadedError("no", retry_after_s=1), 529, "overloaded_error"),
        (errors.EngineFailed("no"), 500, "api_error"),
        (errors.UnavailableError("no"), 503, "overloaded_error"),
        (errors.DeadlineExceededError("no"), 504, "timeout_error"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Exception) else "",
)
def test_errors_as_the_client_raises_them(
    error: errors.Ds4TrioError, status: int, kind: str
) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        anthropic_client(Refusal(error)).messages.create(**ASK)
    assert caught.value.status_code == status
    body = {"type": "error", "error": {"type": kind, "message": error.message}}
    assert caught.value.body == body
    if kind != "request_too_large":  # documented, but not in the types
        assert_exactly(ErrorResponse.model_validate(body, strict=True), body)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.ContextOverflowError(9001, 8192), "9001 tokens > 8191 maximum"),
        # One token is the answer's, so this prompt is one too long.
        (errors.ContextOverflowError(8192, 8192), "8192 tokens > 8191 maximum"),
        (
            errors.ContextOverflowError(9001, 8192, at_least=True),
            "9001 tokens > 8191 maximum (at least so many: they were not counted to the end)",
        ),
    ],
    ids=str,
)
def test_a_prompt_that_is_too_long_in_the_words_that_claude_code_reads(
    error: errors.ContextOverflowError, said: str
) -> None:
    body = json.loads(MESSAGES.render_error(error))
    assert body["error"] == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {said}",
    }


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.RequestError("tools: no", param="tools"), "tools: no"),
        (errors.RequestError("cannot be", param="tools"), "tools: cannot be"),
        (errors.RequestError("no"), "no"),
    ],
)
def test_the_field_is_named_in_the_message(error: errors.RequestError, said: str) -> None:
    assert json.loads(MESSAGES.render_error(error))["error"]["message"] == said


@pytest.mark.parametrize("kind", errors.RequestError.__subclasses__(), ids=lambda k: k.__name__)
def test_no_error_of_the_asker_invites_to_try_again(kind: type[errors.RequestError]) -> None:
    error = errors.ContextOverflowError(9, 8) if kind is errors.ContextOverflowError else kind("no")
    said = json.loads(MESSAGES.render_error(error))["error"]["type"]
    assert said not in {"api_error", "overloaded_error", "rate_limit_error", "timeout_error"}
