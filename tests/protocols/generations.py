"""Whatever a generation may say: event sequences as `ds4trio.events` promises them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from ds4trio.events import (
    Finished,
    FinishReason,
    PromptProgress,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.events import GenerationEvent

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
counts = st.integers(0, 10**6)
arguments = st.dictionaries(
    texts, texts | st.integers() | st.booleans() | st.none() | st.lists(texts, max_size=2)
).map(json.dumps)
ends: st.SearchStrategy[FinishReason] = st.sampled_from(["stop", "length"])
ends_of_calls: st.SearchStrategy[FinishReason] = st.sampled_from(["stop", "length", "tool_calls"])
likely = st.builds(
    TokenLogprob,
    st.integers(0, 9),
    texts,
    st.binary(min_size=1, max_size=3),
    st.floats(-1e5, 0) | st.just(float("-inf")),
)
tokens = st.builds(
    lambda token, top: replace(token, top=tuple(top)), likely, st.lists(likely, max_size=2)
)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt, generated = draw(counts) + 1, draw(counts)
    cached, thought = draw(st.integers(0, prompt - 1)), draw(st.integers(0, generated))
    return Usage(prompt, generated, cached, thought)


@st.composite
def calls(draw: st.DrawFn, index: int, choice: int) -> list[GenerationEvent]:
    """One whole call, its arguments cut anywhere."""
    text = draw(arguments)
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=3))})
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    name = draw(st.sampled_from(["get_weather", "Bash"]))
    return [
        ToolCallStarted(index, f"call_{choice}_{index}", name, choice),
        *[ToolArgumentsDelta(index, piece, choice) for piece in pieces],
        ToolCallEnded(index, choice),
    ]


@st.composite
def choices(
    draw: st.DrawFn, choice: int, *, conversation: bool, logprobs: bool
) -> list[GenerationEvent]:
    kinds = ["text", "thinking", "call"] if conversation else ["text"]
    events: list[GenerationEvent] = []
    called = 0
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=5)):
        match kind:
            case "text":
                seen = draw(st.lists(tokens, max_size=2)) if logprobs else []
                text = draw(st.just("") | texts if seen else texts)
                events.append(TextDelta(text, choice, tuple(seen)))
            case "thinking":
                events.append(ThinkingDelta(draw(texts), choice))
            case _:
                events += draw(calls(called, choice))
                called += 1
    reason = draw(ends_of_calls if called else ends)
    if reason == "length" and events and isinstance(events[-1], ToolCallEnded):
        # Cut off within the call, here or earlier.
        cut = draw(st.integers(1, 2))
        events = events[:-cut]
    return [*events, Finished(reason, Usage(0, 0), choice=choice)]


@st.composite
def generations(
    draw: st.DrawFn, *, n: int = 1, conversation: bool = True, logprobs: bool = False
) -> list[GenerationEvent]:
    """All events of ``n`` choices, run side by side."""
    usage = draw(usages())
    running = [
        draw(choices(choice, conversation=conversation, logprobs=logprobs)) for choice in range(n)
    ]
    out: list[GenerationEvent] = [PromptProgress(0, usage.prompt_tokens)]
    while running:
        stream = draw(st.sampled_from(running)) if len(running) > 1 else running[0]
        event = stream.pop(0)
        if isinstance(event, Finished):
            running = [other for other in running if other is not stream]
            event = replace(event, usage=usage, remaining=len(running))
        out.append(event)
    return out


def text_of(events: Sequence[GenerationEvent], choice: int = 0) -> str:
    return "".join([e.text for e in events if isinstance(e, TextDelta) and e.choice == choice])


def thinking_of(events: Sequence[GenerationEvent], choice: int = 0) -> str:
    return "".join([e.text for e in events if isinstance(e, ThinkingDelta) and e.choice == choice])


def calls_of(events: Sequence[GenerationEvent], choice: int = 0) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call."""
    called: dict[int, tuple[str, str, str]] = {}
    for event in events:
        if isinstance(event, ToolCallStarted) and event.choice == choice:
            called[event.index] = (event.id, event.name, "")
        elif isinstance(event, ToolArgumentsDelta) and event.choice == choice:
            id_, name, text = called[event.index]
            called[event.index] = (id_, name, text + event.text)
    return list(called.values())
