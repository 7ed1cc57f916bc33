"""Answers of OpenAI's endpoints in their exact shapes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from asking import CHAT, COMPLETIONS, each_openai, parse

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
from ds4trio.protocols.openai_chat import OpenAIChat
from ds4trio.protocols.openai_completions import OpenAICompletions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.events import GenerationEvent
    from ds4trio.protocols.wire import WireProtocol

USAGE = Usage(prompt_tokens=9, generated_tokens=2, cached_prompt_tokens=4, thinking_tokens=1)
USAGE_JSON = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "total_tokens": 11,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
EVENTS: list[GenerationEvent] = [
    PromptProgress(0, 9),
    PromptProgress(9, 9),
    TextDelta("Hi"),
    TextDelta(' "there"\n'),
    Finished("stop", USAGE),
]
CALLS: list[GenerationEvent] = [
    ThinkingDelta("Hm"),
    ThinkingDelta("."),
    ToolCallStarted(0, "call_a", "get_weather"),
    ToolArgumentsDelta(0, '{"city":'),
    ToolArgumentsDelta(0, '"Rome"}'),
    ToolCallEnded(0),
    ToolCallStarted(1, "call_b", "apply_patch"),
    ToolArgumentsDelta(1, "*** Begin"),
    ToolCallEnded(1),
    Finished("tool_calls", USAGE),
]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather"}},
    {"type": "custom", "custom": {"name": "apply_patch"}},
]
TWO: list[GenerationEvent] = [
    TextDelta("a", 1),
    TextDelta("b", 0),
    Finished("stop", USAGE, choice=1, remaining=1),
    TextDelta("c", 0),
    Finished("length", USAGE, choice=0, remaining=0),
]


def streamed(
    protocol: WireProtocol, events: Sequence[GenerationEvent], **fields: object
) -> list[dict[str, Any]]:
    """The chunks of a stream, without the ``[DONE]`` that must end it."""
    w = parse(protocol, **fields).writer
    chunks = [event.data for event in [*w.start(), *w.feed(events)]]
    assert chunks.pop() == b"[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def whole(
    protocol: WireProtocol, events: Sequence[GenerationEvent], **fields: object
) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(parse(protocol, **fields).writer.whole(events))
    return answer


def choices(chunks: list[dict[str, Any]]) -> list[tuple[int, Any, str | None]]:
    """What each chunk says: of which choice, what, and the end of it."""
    return [
        (c["index"], c["delta"] if "delta" in c else c["text"], c["finish_reason"])
        for chunk in chunks
        for c in chunk["choices"]
    ]


# --- exact shapes ---


def test_a_whole_chat_answer() -> None:
    assert whole(CHAT, EVENTS, model="mine") == {
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
    assert whole(COMPLETIONS, EVENTS) == {
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


def test_a_whole_answer_with_thinking_and_calls_of_both_kinds() -> None:
    (choice,) = whole(CHAT, CALLS, tools=TOOLS)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "call_a",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
            },
            {
                "id": "call_b",
                "type": "custom",
                "custom": {"name": "apply_patch", "input": "*** Begin"},
            },
        ],
    }


def test_the_chunks_of_thinking_and_calls() -> None:
    _, *chunks = choices(streamed(CHAT, CALLS, tools=TOOLS))
    function = {"name": "get_weather", "arguments": ""}
    custom = {"name": "apply_patch", "input": ""}
    first = {"index": 0, "id": "call_a", "type": "function", "function": function}
    second = {"index": 1, "id": "call_b", "type": "custom", "custom": custom}
    assert [delta for _, delta, _ in chunks] == [
        {"reasoning_content": "Hm"},
        {"reasoning_content": "."},
        {"tool_calls": [first]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]},
        {"tool_calls": [second]},
        {"tool_calls": [{"index": 1, "custom": {"input": "*** Begin"}}]},
        {},
    ]


def test_several_chat_answers_end_one_by_one_and_the_stream_with_the_last() -> None:
    role = {"role": "assistant", "content": "", "refusal": None}
    assert choices(streamed(CHAT, TWO, n=2)) == [
        (0, role, None),
        (1, role, None),
        (1, {"content": "a"}, None),
        (0, {"content": "b"}, None),
        (1, {}, "stop"),
        (0, {"content": "c"}, None),
        (0, {}, "length"),
    ]
    assert [
        (c["index"], c["message"]["content"], c["finish_reason"])
        for c in whole(CHAT, TWO, n=2)["choices"]
    ] == [(0, "bc", "length"), (1, "a", "stop")]


def test_several_completions() -> None:
    assert choices(streamed(COMPLETIONS, TWO, prompt=["x", "y"])) == [
        (1, "a", None),
        (0, "b", None),
        (1, "", "stop"),
        (0, "c", None),
        (0, "", "length"),
    ]
    answer = whole(COMPLETIONS, TWO, n=2)
    assert choices([answer]) == [(0, "bc", "length"), (1, "a", "stop")]
    assert answer["usage"] == USAGE_JSON


def test_a_heartbeat_is_of_a_chat_answer_that_still_runs() -> None:
    w = parse(CHAT, n=2).writer
    beat = w.heartbeat()
    assert beat is not None
    assert choices([json.loads(beat.data)]) == [(0, {}, None)]
    w.feed([Finished("stop", USAGE, choice=0, remaining=1)])
    beat = w.heartbeat()
    assert beat is not None
    assert choices([json.loads(beat.data)]) == [(1, {}, None)]


# --- logprobs ---

EURO = "\u20ac".encode()
TOKENS = (
    TokenLogprob(1, "Hi", b"Hi", -0.5, (TokenLogprob(2, "Ho", b"Ho", -0.25),)),
    # The euro sign in two tokens.
    TokenLogprob(3, "\ufffd", EURO[:1], float("-inf")),
    TokenLogprob(4, "\ufffd", EURO[1:], -1.5),
    TokenLogprob(5, "!", b"!", -2.0, (TokenLogprob(5, "!", b"!", -2.0),)),
)
WITH_LOGPROBS: list[GenerationEvent] = [
    TextDelta("Hi", logprobs=TOKENS[:1]),
    TextDelta("", logprobs=TOKENS[1:2]),
    TextDelta("\u20ac!", logprobs=TOKENS[2:]),
    Finished("stop", USAGE),
]


def test_logprobs_of_a_chat() -> None:
    (choice,) = whole(CHAT, WITH_LOGPROBS, logprobs=True, top_logprobs=1)["choices"]
    assert choice["message"]["content"] == "Hi\u20ac!"
    content = [
        {
            "token": "Hi",
            "logprob": -0.5,
            "bytes": [72, 105],
            "top_logprobs": [{"token": "Ho", "logprob": -0.25, "bytes": [72, 111]}],
        },
        {"token": "\ufffd", "logprob": -9999.0, "bytes": [226], "top_logprobs": []},
        {"token": "\ufffd", "logprob": -1.5, "bytes": [130, 172], "top_logprobs": []},
        {
            "token": "!",
            "logprob": -2.0,
            "bytes": [33],
            "top_logprobs": [{"token": "!", "logprob": -2.0, "bytes": [33]}],
        },
    ]
    assert choice["logprobs"] == {"content": content, "refusal": None}
    chunks = streamed(CHAT, WITH_LOGPROBS, logprobs=True)
    sent = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [part["content"] for part in sent if part] == [content[:1], content[1:2], content[2:]]


def test_logprobs_of_an_echoed_completion() -> None:
    """As lm-eval reads them: a null for what nothing predicts, the token itself among the top."""
    prompt = TokenLogprob(0, "<s>", b"<s>", None)
    events = [TextDelta("<s>", logprobs=(prompt,)), *WITH_LOGPROBS]
    (choice,) = whole(COMPLETIONS, events, logprobs=1, echo=True)["choices"]
    assert choice["text"] == "<s>Hi\u20ac!"
    logprobs = {
        "tokens": ["<s>", "Hi", "bytes:\\xe2", "bytes:\\x82\\xac", "!"],
        "token_logprobs": [None, -0.5, -9999.0, -1.5, -2.0],
        "top_logprobs": [
            None,
            {"Ho": -0.25, "Hi": -0.5},
            {"bytes:\\xe2": -9999.0},
            {"bytes:\\x82\\xac": -1.5},
            {"!": -2.0},
        ],
        "text_offset": [0, 3, 5, 6, 6],
    }
    assert choice["logprobs"] == logprobs
    chunks = streamed(COMPLETIONS, events, logprobs=1, echo=True)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name, values in logprobs.items():
        assert [value for part in parts if part for value in part[name]] == values


# --- frame ---


@each_openai
def test_usage_comes_in_a_chunk_of_its_own_if_asked_for(protocol: WireProtocol) -> None:
    plain = streamed(protocol, EVENTS)
    *chunks, last = streamed(protocol, EVENTS, stream_options={"include_usage": True})
    assert chunks == [chunk | {"usage": None} for chunk in plain]
    assert last == {**plain[0], "choices": [], "usage": USAGE_JSON}


@each_openai
def test_the_model_is_echoed_as_it_was_sent(protocol: WireProtocol) -> None:
    name = 'a "model"\n\u2028\u00e9'
    assert {chunk["model"] for chunk in streamed(protocol, EVENTS, model=name)} == {name}
    assert whole(protocol, EVENTS, model=name)["model"] == name


@pytest.mark.parametrize("protocol", [OpenAIChat(), OpenAICompletions()], ids=lambda p: p.name)
def test_every_answer_has_an_id_of_its_own(protocol: WireProtocol) -> None:
    assert len({whole(protocol, EVENTS)["id"] for _ in range(100)}) == 100
