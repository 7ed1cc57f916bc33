"""The recipe's own stream generators as an oracle: the same text of DeepSeek V4, the same events.

Deltas may be cut elsewhere. Where else the two differ is listed here, with the reason; all that is
not listed must agree. (The recipe has no Completions. It opens a block also for thoughts that are
empty; here there are none then.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import deepseek_recipe as recipe
import pytest
from asking import CHAT, MESSAGES
from deepseek_v4_rig import CLOSE, OPEN, chat_format
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.events import Finished, GenerationEvent, PromptProgress, Usage
from ds4trio.protocols.openai_responses import OpenAIResponses

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ds4trio.events import FinishReason
    from ds4trio.protocols.wire import WireProtocol

RESPONSES = OpenAIResponses(new_id=lambda: "0123abcd", now=lambda: 1_700_000_000.9)
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "f", "description": "f", "parameters": PARAMETERS}
HELLO = [{"role": "user", "content": "Hi"}]
MODEL = "DeepSeek-V4-Pro"
END = {
    "stop": recipe.InferenceFinishReason.Stop,
    "length": recipe.InferenceFinishReason.Length,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One protocol, here and there; and what differs: fields wherever they are, or paths."""

    protocol: WireProtocol
    request: Any
    asked: Mapping[str, object]
    differing: frozenset[str]

    def read(self, events: Iterable[Any]) -> list[Any]:
        """What is compared."""
        return list(events)


class Chat(Dialect):
    def read(self, events: Iterable[Any]) -> list[Any]:
        """Deltas without what is null or empty, and usage as an event of its own: the recipe's
        comes with the reason for the end, OpenAI's own after it."""
        told: list[Any] = []
        for event in events:
            for choice in event["choices"]:
                said = {key: value for key, value in choice["delta"].items() if value}
                end = choice["finish_reason"]
                told += [{"delta": said}] if said else []
                told += [{"finish_reason": end}] if end else []
            told += [{"usage": event["usage"]}] if event.get("usage") else []
        return told


class Messages(Dialect):
    def read(self, events: Iterable[Any]) -> list[Any]:
        """A ping may come at any time; and how much of a prompt is in a cache is known to the
        recipe before the first event, here before the last."""
        told = [event for event in events if event["type"] != "ping"]
        usage = told[0]["message"]["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")
        return told


#: Each side's own names, times, and secrets.
OWN = frozenset(
    {"id", "item_id", "call_id", "signature", "encrypted_content", "created_at", "completed_at"}
)
#: OpenAI's items are incomplete then, the recipe's never.
CUT_OFF = {".item.status", ".response.output.*.status"}
DIALECTS = [
    Chat(
        CHAT,
        recipe.ChatCompletionRequest,
        {
            "messages": HELLO,
            "tools": [{"type": "function", "function": FUNCTION}],
            "stream_options": {"include_usage": True},
        },
        # How much was thought; and DeepSeek's own words for what OpenAI's say as well.
        OWN | {"completion_tokens_details", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens"},
    ),
    Messages(
        MESSAGES,
        recipe.MessagesRequest,
        {
            "messages": HELLO,
            "max_tokens": 100,
            "tools": [{"name": "f", "description": "f", "input_schema": PARAMETERS}],
        },
        # How much was thought; and there are no tiers here.
        OWN | {"output_tokens_details", "service_tier"},
    ),
    Dialect(
        RESPONSES,
        recipe.ResponsesRequest,
        {"input": "Hi", "tools": [{"type": "function", **FUNCTION}]},
        OWN
        # What nothing here does.
        | {"content_filters", "moderation", "prompt_cache_retention"}
        | {"frequency_penalty", "presence_penalty"}
        # As OpenAI's own: answers are kept, verbosity is medium, arguments have a name when done.
        | {"store", "verbosity", ".name", "cache_write_tokens"}
        # Of a message, whether calls follow: known only when it is done.
        | {"phase"},
    ),
]


def theirs(dialect: Dialect, pieces: Sequence[str], end: str) -> Iterator[Any]:
    asked = {"model": MODEL, "stream": True, **dialect.asked}
    request = dialect.request(json.dumps(asked)).convert(recipe.ConversionOptions())
    generator = dialect.request.chunk_generator(request, "id", MODEL)
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    usage = recipe.PromptUsage(prompt_tokens=9, prompt_cache_hit_tokens=4)
    chunks = [
        recipe.InferenceChunk.ready(prompt_usage=usage),
        *[recipe.InferenceChunk.text(piece, 1) for piece in pieces],
        recipe.InferenceChunk.finish(END[end]),
    ]
    for chunk in chunks:
        yield from (json.loads(event.to_json()) for event in processor.push(chunk))
    yield from (json.loads(event.to_json()) for event in processor.finish())


def ours(dialect: Dialect, pieces: Sequence[str], end: FinishReason) -> Iterator[Any]:
    asked = {"model": MODEL, "stream": True, **dialect.asked}
    parsed = dialect.protocol.parse(json.dumps(asked).encode(), MODEL)
    chat = chat_format()
    parser = chat.new_parser(parsed.generation, chat.render(parsed.generation))
    events: list[GenerationEvent] = [PromptProgress(0, 9)]
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish()
    reason: FinishReason = "tool_calls" if parser.called_tools and end == "stop" else end
    events.append(Finished(reason, Usage(9, len(pieces), 4)))
    for wire in [*parsed.writer.start(), *parsed.writer.feed(events)]:
        if wire.data != b"[DONE]":
            yield json.loads(wire.data)


def joined(events: Iterable[Any]) -> list[Any]:
    """Deltas that follow one another as one, and numbers of events left out."""
    told: list[Any] = []
    for event in events:
        event.pop("sequence_number", None)
        last = told[-1] if told else {}
        if (piece := _piece(event)) and (before := _piece(last)) and piece[1:] == before[1:]:
            holder, key, *_ = before[0]
            holder[key] += piece[0][0][piece[0][1]]
        else:
            told.append(event)
    return told


def _piece(event: Any) -> tuple[tuple[dict[str, Any], str], object, object] | None:  # noqa: ANN401 - JSON
    """Where a delta's text stands, and what it is a delta of."""
    if isinstance(event.get("delta"), str):
        return (event, "delta"), event["type"], event["output_index"]
    delta = event.get("delta") or {}
    for key in ("text", "thinking", "partial_json", "content", "reasoning_content"):
        if isinstance(delta.get(key), str) and "role" not in delta:
            return (delta, key), key, event.get("index")
    for call in delta.get("tool_calls", ()):
        if "id" not in call:
            return (call["function"], "arguments"), "arguments", call["index"]
    return None


def differences(mine: Any, other: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 - JSON
    """Paths at which two values differ."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in mine.keys() | other.keys():
            if key not in mine or key not in other:
                yield f"{path}.{key}"
            else:
                yield from differences(mine[key], other[key], f"{path}.{key}")
    elif isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        for one, two in zip(mine, other, strict=True):
            yield from differences(one, two, f"{path}.*")
    elif mine != other:
        yield path


# ---- what models say

WORDS = st.text("aé😀 .", min_size=1, max_size=12).filter(lambda text: text == text.strip())


def written_call(value: str) -> str:
    parameter = f'{OPEN}parameter name="a" string="true">{value}{CLOSE}parameter>'
    return f'{OPEN}invoke name="f">\n{parameter}\n{CLOSE}invoke>\n'


def written(thought: str, said: str, values: Sequence[str]) -> str:
    calls = "".join(map(written_call, values))
    block = f"\n\n{OPEN}tool_calls>\n{calls}{CLOSE}tool_calls>" if values else ""
    return f"{thought}</think>{said}{block}"


answers = st.builds(written, WORDS, st.just("") | WORDS, st.lists(WORDS, max_size=2))
#: Cut off within the thoughts, or the text.
cut = st.builds("{}</think>{}".format, WORDS, WORDS) | WORDS


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=5))})
    return [text[start:end] for start, end in pairwise(cuts)]


def assert_agree(dialect: Dialect, told: Sequence[str], end: FinishReason) -> None:
    mine = joined(dialect.read(ours(dialect, told, end)))
    other = joined(dialect.read(theirs(dialect, told, end)))
    assert len(mine) == len(other)
    known = dialect.differing | (CUT_OFF if end == "length" else set())
    found = {path for pair in zip(mine, other, strict=True) for path in differences(*pair)}
    assert {path for path in found if not {path, path.rpartition(".")[2]} & known} == set()


each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.protocol.name)


@each_dialect
@settings(max_examples=40)
@given(data=st.data())
def test_whole_answers_are_told_alike(dialect: Dialect, data: st.DataObject) -> None:
    assert_agree(dialect, data.draw(pieces(data.draw(answers))), "stop")


@each_dialect
@settings(max_examples=20)
@given(data=st.data())
def test_answers_that_are_cut_are_told_alike(dialect: Dialect, data: st.DataObject) -> None:
    assert_agree(dialect, data.draw(pieces(data.draw(cut))), "length")
