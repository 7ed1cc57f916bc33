"""Whatever a model writes, however its text is cut: each protocol's answer is the same, and a
stream of it is whole."""

from __future__ import annotations

import json
from functools import partial
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.chat.deepseek_v4_dsml import MARK
from ds4trio.chat.deepseek_v4_parser import DsmlParser
from ds4trio.chat.markup import LISTED, TAGGED, ThinkingMarkup
from ds4trio.chat.output import AnswerParser
from ds4trio.chat.thinking import ThinkingSplitter
from ds4trio.chat.tool_parser import ToolParser
from ds4trio.events import Finished, Usage
from ds4trio.protocols.anthropic_messages import AnthropicMessages
from ds4trio.protocols.openai_chat import OpenAIChat
from ds4trio.protocols.openai_completions import OpenAICompletions
from ds4trio.protocols.openai_responses import OpenAIResponses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.chat.tool_parser import CallParser
    from ds4trio.events import FinishReason, GenerationEvent
    from ds4trio.protocols.wire import ParsedRequest, WireProtocol
    from ds4trio.request import GenerationRequest

HELLO = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": HELLO, "tools": [{"type": "function", "function": FUNCTION}]},
    "completions": {"prompt": "Hi"},
    "messages": {"messages": HELLO, "tools": [{"name": "f", "input_schema": {}}]},
    "responses": {"input": "Hi", "tools": [{"type": "function", **FUNCTION}]},
}
#: What calls and thoughts are made of in three markups, whole and broken.
SCRAPS = [
    *("<think>", "</think>", "<thi", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[", "]"),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name": "f"', '"arguments"', "{", "}", ",", '"'),
    *(f"<{MARK}tool_calls>\n", f'<{MARK}invoke name="f">\n', f"</{MARK}invoke>\n", f"<{MARK}"),
    *(f'<{MARK}parameter name="a" string="true">', f"</{MARK}parameter>\n"),
    *(f"</{MARK}tool_calls>", "STOP", "ST", "\n", " ", "text ", "é", "😀"),
]
TEXTS = st.lists(st.sampled_from(SCRAPS) | st.text(max_size=4), max_size=14).map("".join)


def new_ids() -> Callable[[], str]:
    """The same each time."""
    numbers = count()
    return lambda: str(next(numbers))


def asked(name: str) -> ParsedRequest:
    ids = new_ids()
    protocols: dict[str, WireProtocol] = {
        "chat": OpenAIChat(ids, lambda: 1.0),
        "completions": OpenAICompletions(ids, lambda: 1.0),
        "messages": AnthropicMessages(ids),
        "responses": OpenAIResponses(ids, lambda: 1.0),
    }
    body = BODIES[name] | ({"stop_sequences": ["STOP"]} if name == "messages" else {"stop": "STOP"})
    return protocols[name].parse(json.dumps(body).encode(), "served")


def parser_of(request: GenerationRequest, markup: str, *, opened: bool) -> AnswerParser:
    if not request.tools:
        return AnswerParser(request.stop)
    ids = new_ids()
    styles: dict[str, Callable[[], CallParser]] = {
        "tagged": partial(ToolParser, TAGGED, request.tools, ids),
        "listed": partial(ToolParser, LISTED, request.tools, ids),
        "dsml": partial(DsmlParser, request.tools, ids, reads_calls=True, in_block=False),
    }
    thinking = ThinkingSplitter(ThinkingMarkup("<think>", "</think>"), opened=opened)
    return AnswerParser(request.stop, thinking=thinking, new_tools=styles[markup])


def events_of(parser: AnswerParser, pieces: Sequence[str], *, cut: bool) -> list[GenerationEvent]:
    events: list[GenerationEvent] = []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish()
    ends: FinishReason = "tool_calls" if parser.called_tools else "stop"
    usage = Usage(5, 7)
    return [*events, Finished("length" if cut else ends, usage, parser.stop_sequence)]


def is_whole(name: str, stream: list[Any]) -> bool:
    """Whether it ends as its protocol's streams do, and does so once."""
    kinds = [data if isinstance(data, str) else data.get("type") for data in stream]
    match name:
        case "messages":
            return kinds[-2:] == ["message_delta", "message_stop"] and kinds.count(kinds[-1]) == 1
        case "responses":
            last = ("response.completed", "response.incomplete")
            return kinds[-1] in last and not set(last) & set(kinds[:-1])
    finishes = [choice["finish_reason"] for data in stream[:-1] for choice in data["choices"]]
    return kinds[-1] == "[DONE]" and sum(finish is not None for finish in finishes) == 1


@pytest.mark.parametrize("name", BODIES)
@settings(max_examples=50)
@given(
    text=TEXTS,
    cuts=st.lists(st.integers(0, 80), max_size=8),
    markup=st.sampled_from(["tagged", "listed", "dsml"]),
    opened=st.booleans(),
    cut=st.booleans(),
)
def test_any_text(
    name: str, text: str, cuts: list[int], markup: str, opened: bool, cut: bool
) -> None:
    places = sorted({0, len(text), *[at for at in cuts if at < len(text)]})
    pieces = [text[start:end] for start, end in pairwise(places)]
    wholes = []
    for parts in ([text], pieces, list(text)):
        request = asked(name)
        parser = parser_of(request.generation, markup, opened=opened)
        events = events_of(parser, parts, cut=cut)
        wholes.append(json.loads(asked(name).writer.whole(events)))
        writer = request.writer
        said = [*writer.start(), *[e for event in events for e in writer.feed([event])]]
        stream = [json.loads(e.data) if e.data[:1] == b"{" else e.data.decode() for e in said]
        assert is_whole(name, stream), stream
    assert wholes[0] == wholes[1] == wholes[2]
