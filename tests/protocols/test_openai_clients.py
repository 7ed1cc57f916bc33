"""Whatever a generation says, the official ``openai`` package reads it: strictly, and the same
streamed and whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
from asking import CHAT, COMPLETIONS, HELLO, each_protocol, parse
from generations import calls_of, generations, text_of, thinking_of
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from playing import Server, assert_exactly, openai_client

from ds4trio.events import Finished, GenerationEvent, TextDelta, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openai.types import CompletionUsage
    from openai.types.chat.chat_completion import Choice

    from ds4trio.protocols.wire import WireEvent, WireProtocol

#: DeepSeek's, which the official types let through.
REASONING = frozenset({"reasoning_content"})
ASK: dict[str, Any] = {"model": "m", "messages": HELLO["messages"], "n": 2}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


def chunks_of(
    protocol: WireProtocol, events: Sequence[GenerationEvent], **fields: object
) -> list[dict[str, Any]]:
    w = parse(protocol, **USAGE, **fields).writer
    *chunks, done = [event.data for event in [*w.start(), *w.feed(events)]]
    assert done == b"[DONE]"
    return [json.loads(chunk) for chunk in chunks]


@given(events=generations(n=2, logprobs=True))
def test_chat_answers_are_of_the_official_types(events: list[GenerationEvent]) -> None:
    body = parse(CHAT, n=2, logprobs=True).writer.whole(events)
    answer = ChatCompletion.model_validate_json(body, strict=True)
    assert_exactly(answer, json.loads(body), beside=REASONING)
    for chunk in chunks_of(CHAT, events, n=2, logprobs=True):
        read = ChatCompletionChunk.model_validate(chunk, strict=True)
        assert_exactly(read, chunk, beside=REASONING)


@given(events=generations(n=2, conversation=False, logprobs=True))
def test_completions_are_of_the_official_types(events: list[GenerationEvent]) -> None:
    body = parse(COMPLETIONS, n=2, logprobs=1).writer.whole(events)
    assert_exactly(Completion.model_validate_json(body, strict=True), json.loads(body))
    for chunk in chunks_of(COMPLETIONS, events, n=2, logprobs=1):
        for choice in chunk["choices"]:
            # The type is shared with the whole answer, so it has no null; the service sends it.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert_exactly(Completion.model_validate(chunk, strict=True), chunk)


@each_protocol
@given(events=generations())
def test_an_event_is_one_line_of_utf8(
    protocol: WireProtocol, events: list[GenerationEvent]
) -> None:
    w = parse(protocol).writer
    wire: list[WireEvent] = [*w.start(), *w.feed(events)]
    for event in wire:
        assert b"\n" not in event.data
        assert b"\r" not in event.data
        event.data.decode("utf-8")


@each_protocol
@given(events=generations(), data=st.data())
def test_how_events_come_together_makes_no_difference(
    protocol: WireProtocol, events: list[GenerationEvent], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(events)))
    once, twice = parse(protocol).writer, parse(protocol).writer
    assert [*once.feed(events)] == [*twice.feed(events[:cut]), *twice.feed(events[cut:])]


@given(events=generations(n=2, logprobs=True))
def test_the_client_reads_the_same_chat_answers_streamed_and_whole(
    events: list[GenerationEvent],
) -> None:
    chat = openai_client(Server(events)).chat.completions
    whole = chat.create(**ASK, logprobs=True)
    with chat.stream(**ASK, **USAGE, logprobs=True) as stream:
        try:
            folded: ChatCompletion = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            folded = cut.completion
    ends = {event.choice: event for event in events if isinstance(event, Finished)}
    last = events[-1]
    assert isinstance(last, Finished)
    for answer in (whole, folded):
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert counted(answer.usage) == last.usage
        for choice in answer.choices:
            assert_says(choice, events)
            assert choice.finish_reason == ends[choice.index].reason
    logprobs = [
        [choice.logprobs and choice.logprobs.model_dump() for choice in answer.choices]
        for answer in (whole, folded)
    ]
    assert logprobs[0] == logprobs[1]


def assert_says(choice: Choice, events: Sequence[GenerationEvent]) -> None:
    message = choice.message
    assert message.role == "assistant"
    # The client's own folding makes null of an empty text.
    assert (message.content or "") == text_of(events, choice.index)
    extra = message.model_extra or {}
    assert extra.get("reasoning_content", "") == thinking_of(events, choice.index)
    called = [
        (call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or []
        if call.type == "function"
    ]
    assert called == calls_of(events, choice.index)
    seen = [
        token
        for event in events
        if isinstance(event, TextDelta) and event.choice == choice.index
        for token in event.logprobs
    ]
    content = choice.logprobs.content if choice.logprobs else None
    assert [bytes(token.bytes or ()) for token in content or ()] == [t.data for t in seen]


@given(events=generations(n=2, conversation=False))
def test_the_client_reads_the_same_completions_streamed_and_whole(
    events: list[GenerationEvent],
) -> None:
    completions = openai_client(Server(events)).completions
    whole = completions.create(model="m", prompt=["a", "b"])
    *chunks, last = completions.create(model="m", prompt=["a", "b"], stream=True, **USAGE)
    parts = [chunk.choices[0] for chunk in chunks]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert counted(whole.usage) == counted(last.usage) == finished.usage
    assert [choice.index for choice in whole.choices] == [0, 1]
    for choice in whole.choices:
        own = [part for part in parts if part.index == choice.index]
        text = text_of(events, choice.index)
        assert choice.text == "".join([part.text for part in own]) == text
        # (The type of a chunk has no null for those before.)
        reasons: list[str | None] = [part.finish_reason for part in own]
        assert reasons == [None] * (len(own) - 1) + [choice.finish_reason]


def counted(usage: CompletionUsage | None) -> Usage:
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    thought = usage.completion_tokens_details.reasoning_tokens
    assert cached is not None
    assert thought is not None
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached, thought)
