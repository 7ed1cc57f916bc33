"""Answers of the Responses API, as the official ``openai`` package reads them."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from playing import assert_exactly
from pydantic import TypeAdapter

from ds4trio import errors
from ds4trio.events import (
    Finished,
    PromptProgress,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)
from ds4trio.protocols.openai_responses import OpenAIResponses
from ds4trio.server import sse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ds4trio.events import FinishReason, GenerationEvent
    from ds4trio.protocols.wire import ParsedRequest, WireEvent

USAGE = Usage(prompt_tokens=9, generated_tokens=5, cached_prompt_tokens=4, thinking_tokens=2)
CUSTOM = {"type": "custom", "name": "patch", "format": {"type": "text"}}
NAMESPACE = {
    "type": "namespace",
    "name": "git",
    "description": "d",
    "tools": [{"type": "function", "name": "log", "parameters": {}, "strict": False}],
}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {}, "description": "s"}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False},
    CUSTOM,
    NAMESPACE,
    SEARCH,
    {"type": "web_search"},
]

#: OpenAI says these too, but its types do not: of a response, of custom calls, of tokens beside
#: a delta, and of a call's whole arguments.
BESIDE = frozenset({"store", "status", "bytes", "name"})

strict_event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
strict_response = TypeAdapter(Response)

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
pieces = st.lists(texts, min_size=1, max_size=3)
counts = st.integers(0, 10**6)
logprobs = st.builds(
    TokenLogprob,
    token_id=st.just(5),
    text=texts,
    data=st.binary(max_size=3),
    logprob=st.floats(-100, 0),
)


def parsed(**fields: object) -> ParsedRequest:
    numbers = count()
    protocol = OpenAIResponses(new_id=lambda: f"{next(numbers):04d}", now=lambda: 1_700_000_000.9)
    body = {"input": "Hello", "tools": TOOLS, **fields}
    return protocol.parse(json.dumps(body).encode(), "served")


@st.composite
def generations(draw: st.DrawFn) -> list[GenerationEvent]:
    """Events in any order that `ds4trio.events` allows, with calls that overlap and are cut."""
    events: list[GenerationEvent] = [PromptProgress(0, 9)]
    open_calls: list[int] = []
    calls = count()
    for kind in draw(st.lists(st.sampled_from(["think", "say", "call", "argue", "end"]))):
        match kind:
            case "think":
                events += [ThinkingDelta(text) for text in draw(pieces)]
            case "say":
                tokens = tuple(draw(st.lists(logprobs, max_size=2)))
                hidden = bool(tokens) and draw(st.booleans())
                events.append(TextDelta("" if hidden else "x", 0, tokens))
                events += [TextDelta(text) for text in draw(pieces)]
            case "call":
                index = next(calls)
                names = ["weather", "patch", "git__log", "tool_search", "never declared"]
                events.append(ToolCallStarted(index, f"call_{index}", draw(st.sampled_from(names))))
                open_calls.append(index)
            case "argue" if open_calls:
                index = draw(st.sampled_from(open_calls))
                events += [ToolArgumentsDelta(index, text) for text in draw(pieces)]
            case "end" if open_calls:
                index = open_calls.pop(draw(st.integers(0, len(open_calls) - 1)))
                events.append(ToolCallEnded(index))
    reason: FinishReason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    return [*events, Finished(reason, draw(st.builds(Usage, counts, counts, counts, counts)))]


summaries = st.sampled_from([None, "auto"])


def stream(
    events: Sequence[GenerationEvent], request: ParsedRequest, chunk: int = 1
) -> list[WireEvent]:
    words = [*request.writer.start()]
    for at in range(0, len(events), chunk):
        words += request.writer.feed(events[at : at + chunk])
    return words


def datas(words: Iterable[WireEvent]) -> list[Any]:
    return [json.loads(word.data) for word in words]


# --- properties ---


@given(generations(), summaries, st.integers(1, 5))
def test_the_last_event_holds_the_whole_answer(
    events: list[GenerationEvent], summary: str | None, chunk: int
) -> None:
    reasoning = {"summary": summary}
    whole = json.loads(parsed(reasoning=reasoning).writer.whole(events))
    last = datas(stream(events, parsed(reasoning=reasoning), chunk))[-1]
    assert last["response"] == whole
    assert last["type"] == f"response.{whole['status']}"


@given(generations(), summaries)
def test_every_event_is_one_that_the_official_types_know(
    events: list[GenerationEvent], summary: str | None
) -> None:
    for number, word in enumerate(stream(events, parsed(reasoning={"summary": summary}))):
        data = json.loads(word.data)
        event = strict_event.validate_json(word.data, strict=True)
        assert_exactly(event, data, beside=BESIDE)
        assert event.type == word.name == data["type"]
        assert data["sequence_number"] == number


@given(generations(), summaries)
def test_each_item_is_opened_said_and_closed(
    events: list[GenerationEvent], summary: str | None
) -> None:
    """Folds a stream as its reference describes it, knowing nothing of the writer."""
    told = datas(stream(events, parsed(reasoning={"summary": summary})))
    types = [event["type"] for event in told]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] in ("response.completed", "response.incomplete")
    opened: dict[int, str] = {}
    done: dict[int, Any] = {}
    said: dict[int, str] = {}
    for event in told[2:-1]:
        place = event["output_index"]
        match event["type"].removeprefix("response.").split("."):
            case ["output_item", "added"]:
                assert place == len(opened)
                opened[place] = event["item"]["id"]
                assert event["item"]["status"] == "in_progress"
                continue
            case ["output_item", "done"]:
                assert event["item"]["id"] == opened[place]
                assert place not in done
                done[place] = event["item"]
                continue
            case [_, "delta"]:
                said[place] = said.get(place, "") + event["delta"]
        assert event["item_id"] == opened[place]
        assert place not in done
    output = told[-1]["response"]["output"]
    assert [done[place] for place in sorted(opened)] == output
    for place, item in enumerate(output):
        assert said.get(place, "") == text_of(item)


def text_of(item: dict[str, Any]) -> str:
    match item["type"]:
        case "message":
            return "".join(part["text"] for part in item["content"])
        case "reasoning":
            parts = [*item["summary"], *item.get("content", [])]
            return "".join(part["text"] for part in parts)
        case "function_call":
            return str(item["arguments"])
        case "custom_tool_call":
            return str(item["input"])
        case "tool_search_call":
            return ""
    raise AssertionError(item)


@settings(max_examples=30)
@given(generations(), summaries)
def test_the_official_client_accumulates_a_stream(
    events: list[GenerationEvent], summary: str | None
) -> None:
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    reasoning = cast("Any", {"summary": summary})
    client = official(events)
    with client.responses.stream(
        model="m", input="Hello", tools=cast("Any", TOOLS), reasoning=reasoning
    ) as answer:
        last = cast("Any", list(answer)[-1]).response
    assert last.output_text == said
    assert last.usage.input_tokens + last.usage.output_tokens == last.usage.total_tokens


class Recorded(httpx.BaseTransport):
    """Answers with the given events, a sign of life before each, without a network."""

    def __init__(
        self, events: Sequence[GenerationEvent], last: errors.Ds4TrioError | None = None
    ) -> None:
        self._events = events
        self._last = last

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.read())
        p = parsed(**asked)
        if not p.stream:
            json_type = {"content-type": "application/json"}
            return httpx.Response(200, headers=json_type, content=p.writer.whole(self._events))
        words = [sse.encode(p.writer.start())]
        for event in self._events:
            words += [sse.heartbeat(p.writer.heartbeat()), sse.encode(p.writer.feed([event]))]
        if self._last is not None:
            words.append(sse.encode(p.writer.fail(self._last)))
        stream_type = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=stream_type, content=b"".join(words))


def official(
    events: Sequence[GenerationEvent], last: errors.Ds4TrioError | None = None
) -> openai.OpenAI:
    http = httpx.Client(transport=Recorded(events, last))
    # The package takes httpx's client too, but declares only its own.
    return openai.OpenAI(
        api_key="k", base_url="http://test/v1", http_client=cast("Any", http), max_retries=0
    )


@given(generations())
def test_a_whole_answer_is_what_the_official_type_says(events: list[GenerationEvent]) -> None:
    body = parsed().writer.whole(events)
    response = strict_response.validate_json(body, strict=True)
    assert_exactly(response, json.loads(body), beside=BESIDE)
    assert response.model_extra == {"store": True}
    assert response.status in ("completed", "incomplete")


# --- by example ---


def test_a_stream_of_thoughts_text_and_a_call() -> None:
    events: list[GenerationEvent] = [
        PromptProgress(0, 9),
        ThinkingDelta("Hm"),
        TextDelta("Hi"),
        ToolCallStarted(0, "call_a", "weather"),
        ToolArgumentsDelta(0, '{"a":'),
        ToolArgumentsDelta(0, "1}"),
        ToolCallEnded(0),
        Finished("tool_calls", USAGE),
    ]
    told = datas(stream(events, parsed(include=["message.output_text.logprobs"])))
    assert [event["type"].removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    response = told[-1]["response"]
    assert response["output"] == [
        {
            "id": "rs_0002",
            "type": "reasoning",
            "status": "completed",
            "encrypted_content": None,
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {
            "id": "msg_0003",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
        },
        {
            "id": "fc_0004",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_a",
            "name": "weather",
            "arguments": '{"a":1}',
        },
    ]
    assert response["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    }
    assert response["completed_at"] == 1_700_000_000


def test_thoughts_are_the_summary_where_one_is_asked_for() -> None:
    events: list[GenerationEvent] = [
        ThinkingDelta("H"),
        ThinkingDelta("m"),
        Finished("stop", USAGE),
    ]
    told = datas(stream(events, parsed(reasoning={"summary": "auto"})))
    assert [event["type"].removeprefix("response.") for event in told[2:-1]] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    (item,) = told[-1]["response"]["output"]
    assert item["summary"] == [{"type": "summary_text", "text": "Hm"}]
    assert "content" not in item


@pytest.mark.parametrize(
    ("called", "item"),
    [
        ("patch", {"type": "custom_tool_call", "name": "patch", "input": "{}"}),
        ("git__log", {"type": "function_call", "name": "log", "namespace": "git"}),
        ("tool_search", {"type": "tool_search_call", "execution": "client", "arguments": {}}),
        ("unheard_of", {"type": "function_call", "name": "unheard_of", "arguments": "{}"}),
    ],
)
def test_a_call_is_named_as_its_tool_was_declared(called: str, item: dict[str, object]) -> None:
    events: list[GenerationEvent] = [
        ToolCallStarted(0, "call_a", called),
        ToolArgumentsDelta(0, "{}"),
        ToolCallEnded(0),
        Finished("tool_calls", USAGE),
    ]
    (said,) = json.loads(parsed().writer.whole(events))["output"]
    assert said.items() >= {"call_id": "call_a", "status": "completed", **item}.items()


def test_an_answer_that_is_cut_says_so() -> None:
    events: list[GenerationEvent] = [
        TextDelta("Hi"),
        ToolCallStarted(0, "call_a", "weather"),
        ToolArgumentsDelta(0, '{"a'),
        Finished("length", USAGE),
    ]
    response = json.loads(parsed().writer.whole(events))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_log_probabilities_stand_beside_the_text() -> None:
    likelier = TokenLogprob(7, "Ho", b"Ho", -0.25)
    token = TokenLogprob(5, "Hi", b"Hi", -1.5, (likelier,))
    waiting = TokenLogprob(6, "", b"", -2.0)
    events: list[GenerationEvent] = [
        TextDelta("", 0, (waiting,)),
        TextDelta("Hi", 0, (token,)),
        Finished("stop", USAGE),
    ]
    told = datas(stream(events, parsed()))
    first = {"token": "", "logprob": -2.0, "bytes": [], "top_logprobs": []}
    second = {
        "token": "Hi",
        "logprob": -1.5,
        "bytes": [72, 105],
        "top_logprobs": [{"token": "Ho", "logprob": -0.25, "bytes": [72, 111]}],
    }
    assert [event["logprobs"] for event in told if "logprobs" in event] == [[first, second]] * 2
    (item,) = told[-1]["response"]["output"]
    assert item["content"][0]["logprobs"] == [first, second]


def test_a_response_repeats_what_was_asked() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    asked: dict[str, Any] = {
        "instructions": "Be kind",
        "max_output_tokens": 50,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "previous_response_id": "resp_x",
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "temperature": 0.5,
        "top_p": 0.25,
        "tool_choice": {"type": "function", "name": "weather"},
        "text": {"format": schema, "verbosity": "low"},
        "user": "u",
        "prompt_cache_key": "k",
        "top_logprobs": 3,
        "max_tool_calls": 2,
        "safety_identifier": "s",
    }
    response = json.loads(parsed(**asked, model="mine").writer.whole([Finished("stop", USAGE)]))
    text = {"format": {**schema, "description": None}, "verbosity": "low"}
    assert response.items() >= {**asked, "text": text, "model": "mine"}.items()
    assert [tool["type"] for tool in response["tools"]] == [t["type"] for t in TOOLS]
    assert response["truncation"] == "disabled"


def test_a_background_answer_waits_before_it_is_in_progress() -> None:
    request = parsed(background=True)
    told = datas(stream([PromptProgress(0, 9), TextDelta("Hi")], request))
    assert [(event["type"], event["response"]["status"]) for event in told[:3]] == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
    ]


# --- streams that cannot go on ---


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ContextOverflowError(90, 80), "context_length_exceeded"),
        (errors.OverloadedError("Full.", retry_after_s=3), "rate_limit_exceeded"),
        (errors.RequestError("No."), "invalid_prompt"),
        (errors.EngineFailed("Dead."), "server_error"),
        (errors.UnavailableError("Stopping."), "server_error"),
        (errors.DeadlineExceededError("Late."), "server_error"),
    ],
)
def test_a_failure_is_told_to_the_official_clients_and_to_codex(
    error: errors.Ds4TrioError, code: str
) -> None:
    request = parsed()
    stream([ToolCallStarted(0, "call_a", "weather"), ToolArgumentsDelta(0, "{")], request)
    told = datas(request.writer.fail(error))
    assert [event["type"] for event in told] == ["error", "response.failed"]
    assert told[0]["code"] == code
    response = told[1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == code
    assert response["error"]["message"].startswith(error.message)
    # A call that is not whole must not be acted upon.
    assert [item["status"] for item in response["output"]] == ["incomplete"]


def test_codex_reads_how_long_to_wait() -> None:
    (_, failed) = datas(parsed().writer.fail(errors.OverloadedError("Full.", retry_after_s=3)))
    assert "try again in 3s" in failed["response"]["error"]["message"]


def test_a_cancelled_answer_is_cancelled_and_not_failed() -> None:
    request = parsed()
    stream([TextDelta("Hi")], request)
    _, last = datas(request.writer.fail(errors.RequestCancelledError("The request was cancelled.")))
    assert (last["response"]["status"], last["response"]["error"]) == ("cancelled", None)


def test_the_official_client_reads_a_failure() -> None:
    client = official([TextDelta("Hi")], last=errors.EngineFailed("Dead."))
    events = list(client.responses.create(model="m", input="Hello", stream=True))
    error, failed = events[-2:]
    assert error.type == "error"
    assert error.message == "Dead."
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert failed.response.error.message == "Dead."


def test_a_sign_of_life_is_data() -> None:
    """Codex counts no comments; any data event of an unknown type will do (measured)."""
    beat = parsed().writer.heartbeat()
    assert beat is not None
    assert json.loads(beat.data) == {"type": "keepalive"}
