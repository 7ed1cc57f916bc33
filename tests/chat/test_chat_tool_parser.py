"""Tool calls of every markup, in answers of every kind."""

from __future__ import annotations

import json
from functools import partial
from itertools import count, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.markup import BARE, LISTED, TAGGED, THINKING_MARKUPS, TOOL_MARKUPS, ToolMarkup
from ds4trio.chat.output import AnswerParser
from ds4trio.chat.thinking import ThinkingSplitter
from ds4trio.chat.tool_parser import ToolParser
from ds4trio.events import (
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
)
from ds4trio.request import ToolSpec

if TYPE_CHECKING:
    from ds4trio.chat.format import ParsedEvent

TOOLS = (ToolSpec("f"), ToolSpec("g"), ToolSpec("patch", grammar=""))
NAMES = {markup.opening: markup for markup in TOOL_MARKUPS}
MARKUPS = pytest.mark.parametrize("markup", TOOL_MARKUPS, ids=list(NAMES))


def parser(
    markup: ToolMarkup = TAGGED,
    *,
    stop: tuple[str, ...] = (),
    opened: bool | None = None,
    one_call: bool = False,
) -> AnswerParser:
    """``opened`` None: the model has no thoughts."""
    numbers = count()
    marks = THINKING_MARKUPS[0]
    return AnswerParser(
        stop,
        thinking=None if opened is None else ThinkingSplitter(marks, opened=opened),
        new_tools=partial(ToolParser, markup, TOOLS, lambda: f"id{next(numbers)}"),
        one_call=one_call,
    )


def read(made: AnswerParser, *pieces: str) -> list[ParsedEvent]:
    return [event for piece in pieces for event in made.feed(piece)] + list(made.finish())


def told(events: list[ParsedEvent]) -> list[object]:
    """Events in short, deltas joined: text, ``("think", text)``, ``[name, arguments, ended]``."""
    out: list[object] = []
    for event in events:
        match event, out[-1] if out else None:
            case TextDelta(text), str(last):
                out[-1] = last + text
            case TextDelta(text), _:
                out.append(text)
            case ThinkingDelta(text), ("think", str(last)):
                out[-1] = ("think", last + text)
            case ThinkingDelta(text), _:
                out.append(("think", text))
            case ToolCallStarted(name=name), _:
                out.append([name, "", False])
            case ToolArgumentsDelta(text=text), list(last):
                last[1] += text
            case ToolCallEnded(), list(last):
                last[2] = True
            case _:
                raise AssertionError(event)
    return out


def check_order(events: list[ParsedEvent]) -> None:
    """Calls are numbered, one is open at most, and no delta is empty."""
    started, open_call = 0, None
    for event in events:
        match event:
            case ToolCallStarted(index=index):
                assert index == started
                started, open_call = started + 1, index
            case ToolArgumentsDelta(index=index, text=text):
                assert (index, bool(text)) == (open_call, True)
            case ToolCallEnded(index=index):
                assert index == open_call
                open_call = None
            case TextDelta(text) | ThinkingDelta(text):
                assert text
                open_call = None


JSON_OBJECTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    ),
    max_size=4,
).filter(lambda value: "NaN" not in json.dumps(value) and "Infinity" not in json.dumps(value))


@st.composite
def calls(draw: st.DrawFn, markup: ToolMarkup) -> tuple[str, list[object]]:
    """Calls as a model writes them, and what is to be told of them."""
    most = markup.most_calls or 3
    texts, expected = [], list[object]()
    for _ in range(draw(st.integers(1, most))):
        name = draw(st.sampled_from(["f", "g"]))
        arguments = json.dumps(
            draw(JSON_OBJECTS),
            ensure_ascii=draw(st.booleans()),
            indent=draw(st.sampled_from([None, 1])),
        )
        members = [f'"name": "{name}"', f'"{markup.arguments_key}": {arguments}']
        members += draw(
            st.sampled_from([[], ['"id": "123456789"'], ['"x": [{"name": 1}, -2.5e3]']])
        )
        space = draw(st.sampled_from(["", " ", "\n"]))
        texts.append("{" + space + f",{space}".join(draw(st.permutations(members))) + space + "}")
        expected.append([name, arguments, True])
    return markup.before + markup.between.join(texts) + markup.after, expected


@MARKUPS
@given(data=st.data())
def test_calls_are_told_as_they_stand(markup: ToolMarkup, data: st.DataObject) -> None:
    text, expected = data.draw(calls(markup))
    events = read(parser(markup), text)
    assert told(events) == expected
    check_order(events)


@MARKUPS
@given(data=st.data())
def test_text_around_calls_stays(markup: ToolMarkup, data: st.DataObject) -> None:
    text, expected = data.draw(calls(markup))
    if markup.bare:
        text = markup.opening + text
    events = read(parser(markup), f"before \n{text}\n\nafter\n")
    assert told(events) == ["before", *expected, "\n\nafter\n"]


SCRAPS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "<tool",
                "[TOOL_CALLS]",
                "[",
                "]",
                "<|python_tag|>",
                ";",
            ]
        ),
        st.sampled_from(["<think>", "</think>", "</thi", "\n", " ", "STOP", "S", "x"]),
        st.sampled_from(
            ['{"name": "f"', '{"name":', '"arguments": ', '"parameters": {', "{}", "}"]
        ),
        st.sampled_from(
            ['{"name": "patch", "arguments": {"input": "', '"a', "\\", "\\ud83d", '"', ","]
        ),
        st.sampled_from(['{"name": "g", "arguments": {"a": [1, "é\\n"]}}', '{"parameters": {"q"']),
        st.text(max_size=3),
    ),
    max_size=12,
).map("".join)


@MARKUPS
@given(text=SCRAPS, cuts=st.lists(st.integers(0, 200)), data=st.data())
def test_any_cutting_gives_the_same(
    markup: ToolMarkup, text: str, cuts: list[int], data: st.DataObject
) -> None:
    opened = data.draw(st.sampled_from([None, False, True]))
    one_call = data.draw(st.booleans())
    make = partial(parser, markup, stop=("STOP", "xS"), opened=opened, one_call=one_call)
    whole, pieces = make(), make()
    expected = read(whole, text)
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    events = read(pieces, *(text[a:b] for a, b in pairwise(borders)))
    assert told(events) == told(expected)
    assert pieces.stop_sequence == whole.stop_sequence
    assert pieces.called_tools == whole.called_tools
    assert pieces.in_thinking == whole.in_thinking
    check_order(events)
    check_order(expected)


@MARKUPS
@given(text=SCRAPS)
def test_without_calls_no_text_is_lost(markup: ToolMarkup, text: str) -> None:
    events = told(read(parser(markup), text))
    if not any(isinstance(event, list) for event in events):
        assert "".join(map(str, events)) == text


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = ["f", '{"a": 1}', True]


@pytest.mark.parametrize(
    ("markup", "text", "expected"),
    [
        # Broken before the call began: text, all of it.
        (TAGGED, "<tool_call>{nope}</tool_call> x", ["<tool_call>{nope}</tool_call> x"]),
        (TAGGED, '<tool_call>{"name": "f"', [["f", "", False]]),
        (TAGGED, '<tool_call>{"name": "', ['<tool_call>{"name": "']),
        (TAGGED, '<tool_call>{"name": 5}', ['<tool_call>{"name": 5}']),
        (TAGGED, '<tool_call>{"name": ""}', ['<tool_call>{"name": ""}']),
        (TAGGED, '<tool_call>{"arguments": {}}', ['<tool_call>{"arguments": {}}']),
        (TAGGED, "<tool_call>", ["<tool_call>"]),
        (TAGGED, "<tool_call><tool_call>[", ["<tool_call><tool_call>["]),
        (TAGGED, f"<tool_call> no {CALL}", ["<tool_call> no", F]),
        (TAGGED, f"<tool_call>{{ {CALL}", ["<tool_call>{", F]),
        # Broken in the call: what was told stays, and the rest is text.
        (
            TAGGED,
            '<tool_call>{"name": "f", "arguments": {"a": 1}, x}',
            [["f", '{"a": 1}', False], ", x}"],
        ),
        (
            TAGGED,
            '<tool_call>{"name": "f", "arguments": [1]}',
            [["f", "", False], ', "arguments": [1]}'],
        ),
        (
            TAGGED,
            '<tool_call>{"name": "f", "arguments": {"a": nope}}',
            [["f", '{"a": n', False], "ope}}"],
        ),
        # Cut off.
        (TAGGED, '<tool_call>{"name": "f", "arguments": {"a": "x\\', [["f", '{"a": "x\\', False]]),
        (TAGGED, CALL[:-5], [F]),
        (TAGGED, CALL[:-13], [F]),
        # Odd, and yet calls.
        (TAGGED, '<tool_call>{"name": "f"}</tool_call>', [["f", "{}", True]]),
        (TAGGED, '<tool_call>{"name": "new", "arguments": {}}', [["new", "{}", True]]),
        (TAGGED, '<tool_call>{"name": "f", "parameters": {}}', [["f", "{}", True]]),
        (
            TAGGED,
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}</tool_call>',
            [["f", '{"a": "é"}', True]],
        ),
        (
            TAGGED,
            '<tool_call>{"name": "f", "arguments": {"a": "x\n\t"}}</tool_call>',
            [["f", '{"a": "x\\n\\t"}', True]],
        ),
        (
            TAGGED,
            '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_call>',
            [F, ["g", "{}", True]],
        ),
        (TAGGED, f"{CALL}\n{CALL} \n", [F, F]),
        (TAGGED, f"{CALL[:-12]} and", [F, "\n and"]),
        (LISTED, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', [F]),
        (LISTED, '[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}', [F]),
        (LISTED, '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}', [F]),
        (LISTED, '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, ok', [F, ", ok"]),
        (BARE, '{"name": "f", "parameters": {"a": 1}}', [F]),
        (BARE, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [F]),
        (BARE, '{"name": "f", "parameters": {"a": 1}}; {"name": "g"}', [F, ["g", "{}", True]]),
        (BARE, '{"name": "other", "parameters": {}}', ['{"name": "other", "parameters": {}}']),
        (BARE, 'See {"name": "f", "parameters": {}}', ['See {"name": "f", "parameters": {}}']),
        (BARE, "<|python_tag|>print(1)", ["<|python_tag|>print(1)"]),
        (BARE, '{"a": {"name": "f"}}', ['{"a": {"name": "f"}}']),
    ],
)
def test_what_models_write(markup: ToolMarkup, text: str, expected: list[object]) -> None:
    assert told(read(parser(markup), text)) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "*** Begin\\n<a> & </b>\\ud83d\\ude00"}', "*** Begin\n<a> & </b>😀"),
        ('{"input": "\\ud83d!\\ude00"}', "\ufffd!\ufffd"),
        ('"plain\\n"', "plain\n"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"input": "a", "more": 1}', "a"),
        ("{}", ""),
    ],
)
def test_a_custom_tools_input_is_plain(arguments: str, expected: str) -> None:
    text = f'<tool_call>{{"name": "patch", "arguments": {arguments}}}</tool_call>'
    assert told(read(parser(), text)) == [["patch", expected, True]]
    assert told(read(parser(), *text)) == [["patch", expected, True]]


@given(text=st.text())
def test_any_input_comes_whole(text: str) -> None:
    body = json.dumps({"name": "patch", "arguments": {"input": text}})
    assert told(read(parser(), *f"<tool_call>{body}</tool_call>")) == [["patch", text, True]]


def test_calls_are_told_as_they_come() -> None:
    made = parser()
    called = [made.called_tools]
    assert made.feed('Hi <tool_call>{"name": "f') == [TextDelta("Hi")]
    called.append(made.called_tools)
    assert made.feed('"') == [ToolCallStarted(0, "id0", "f")]
    assert [*called, made.called_tools] == [False, False, True]
    assert made.feed(', "arguments": {"a"') == [ToolArgumentsDelta(0, '{"a"')]
    assert made.feed(": 1}") == [ToolArgumentsDelta(0, ": 1}")]
    assert made.feed("}") == [ToolCallEnded(0)]
    assert made.feed("\n</tool_call>\n<tool_call>") == []
    assert made.feed('{"name": "g"}') == [
        ToolCallStarted(1, "id1", "g"),
        ToolArgumentsDelta(1, "{}"),
        ToolCallEnded(1),
    ]
    assert made.finish("</tool_call>") == []


def test_text_that_can_be_no_markup_is_not_held() -> None:
    made = parser(opened=False)
    assert made.feed("a<tool") == [TextDelta("a")]
    assert made.feed("s>") == [TextDelta("<tools>")]


def test_one_call_ends_the_answer() -> None:
    made = parser(one_call=True)
    assert told(list(made.feed(f"Hi\n{CALL}\n{CALL}"))) == ["Hi", F]
    assert made.is_done
    assert made.feed("more") == made.finish("more") == []


def test_without_tools_markup_is_text() -> None:
    assert read(AnswerParser(), CALL) == [TextDelta(CALL)]


def test_stop_strings_end_text_and_nothing_else() -> None:
    made = parser(stop=("a", "</"), opened=True)
    call = '<tool_call>{"name": "f", "arguments": {"a": "a</"}}</tool_call>'
    events = made.feed(f"a thought </i></think>Yes{call}done: a. Not {call}")
    expected = [("think", "a thought </i>"), "Yes", ["f", '{"a": "a</"}', True], "done: "]
    assert told(list(events)) == expected
    assert (made.stop_sequence, made.is_done) == ("a", True)
    assert made.finish("x") == []


def test_text_before_a_call_does_not_go_on_after_it() -> None:
    made = parser(stop=("ST",))
    assert told(read(made, f"S{CALL}T")) == ["S", F, "T"]
    assert made.stop_sequence is None
