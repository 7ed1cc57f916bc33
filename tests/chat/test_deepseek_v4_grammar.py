"""Grammars of DSML, held to by llguidance itself, byte by byte."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from deepseek_v4_rig import CLOSE, OPEN, ask, chat_format
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from ds4trio.errors import RequestError
from ds4trio.events import ToolCallStarted
from ds4trio.request import (
    Choice,
    GenerationRequest,
    JsonSchema,
    LarkGrammar,
    Message,
    NamedTool,
    Thinking,
    ToolSpec,
)

HI = Message("user", "Hi")
COLOR = {"enum": ["red", "dark blue"]}
WEATHER = ToolSpec(
    "weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "color": {"$ref": "#/$defs/Color"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city"],
        "$defs": {"Color": COLOR},
    },
)
CLOCK = ToolSpec("clock")
PATCH = ToolSpec("patch", grammar='start: "*** Begin\\n" /[a-z]+/')
NOTE = ToolSpec("note", grammar="")
BEGIN, END = f"\n\n{OPEN}tool_calls>\n", f"{CLOSE}tool_calls>"


def parameter(name: str, kind: str, value: str) -> str:
    return f'{OPEN}parameter name="{name}" string="{kind}">{value}{CLOSE}parameter>\n'


def call(name: str, *parameters: str) -> str:
    return f'{OPEN}invoke name="{name}">\n{"".join(parameters)}{CLOSE}invoke>\n'


OSLO = parameter("city", "true", 'Oslo </b> "x"\n')


def holds(request: GenerationRequest, answer: str) -> bool:
    """Whether the whole answer is one that the grammar allows."""
    form = chat_format().output_format(request)
    assert isinstance(form, LarkGrammar)
    tokenizer = LLTokenizer("byte")
    assert LLMatcher.validate_grammar(form.grammar, tokenizer) == ""
    matcher = LLMatcher(tokenizer, form.grammar)
    tokens = tokenizer.tokenize_str(answer)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("made", "allowed"),
    [
        (call("weather", OSLO), True),
        (call("weather", OSLO, parameter("days", "false", "3")), True),
        (call("weather", OSLO, parameter("color", "true", "dark blue")), True),
        (call("weather", OSLO, parameter("note", "true", "any"), ""), True),
        (call("weather", OSLO, parameter("note", "false", "null")), True),
        (call("weather", OSLO) + call("clock"), True),
        (call("weather"), False),
        (call("weather", OSLO, parameter("days", "false", "three")), False),
        (call("weather", OSLO, parameter("days", "true", "3")), False),
        (call("weather", OSLO, parameter("color", "true", "green")), False),
        (call("weather", OSLO, parameter("color", "false", '"red"')), False),
        (call("weather", OSLO, parameter("city", "true", "Rome")), False),
        (call("other"), False),
        ("", False),
    ],
)
def test_a_call_of_any_tool(made: str, allowed: bool) -> None:
    request = ask(HI, tools=(WEATHER, CLOCK), tool_choice="required")
    assert holds(request, f"{BEGIN}{made}{END}") == allowed
    assert not holds(request, made)


def test_a_call_of_one_tool() -> None:
    request = ask(HI, tools=(WEATHER, CLOCK), tool_choice=NamedTool("clock"))
    assert holds(request, BEGIN + call("clock") + END)
    assert holds(request, BEGIN + call("clock", parameter("any", "false", '{"a": [1]}')) + END)
    assert holds(request, BEGIN + call("clock") + call("clock") + END)
    assert not holds(request, BEGIN + call("weather", OSLO) + END)


def test_only_one_call() -> None:
    request = ask(HI, tools=(CLOCK,), tool_choice="required", parallel_tool_calls=False)
    assert holds(request, BEGIN + call("clock") + END)
    assert not holds(request, BEGIN + call("clock") + call("clock") + END)


def test_without_thoughts_the_prompt_has_begun_the_calls() -> None:
    silent = Thinking(enabled=False)
    request = ask(HI, tools=(CLOCK,), tool_choice="required", thinking=silent)
    assert holds(request, call("clock") + END)
    assert not holds(request, BEGIN + call("clock") + END)


def test_custom_tools() -> None:
    request = ask(HI, tools=(PATCH, NOTE), tool_choice="required")
    good, bad = parameter("input", "true", "*** Begin\nabc"), parameter("input", "true", "abc")
    assert holds(request, BEGIN + call("patch", good) + END)
    assert not holds(request, BEGIN + call("patch", bad) + END)
    assert holds(request, BEGIN + call("note", bad) + END)


def test_a_form_and_free_calls() -> None:
    schema = JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}})
    request = ask(HI, tools=(WEATHER,), output_format=schema)
    assert holds(request, '{"a": 1}')
    assert holds(request, BEGIN + call("weather", OSLO) + END)
    assert not holds(request, '{"a": "b"}')


STRICT = replace(WEATHER, strict=True)
GOOD = call("weather", OSLO)
BAD = call("weather", parameter("days", "false", "3"))


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        ("", True),
        ("Hello", True),
        (f"a < b, <｜, {CLOSE}invoke>, <tool_calls> and </think>", True),
        (f"Hi{BEGIN}{GOOD}{END}", True),
        (f"{BEGIN[2:]}{GOOD}{GOOD}{END}", True),
        (BEGIN + call("clock", parameter("any", "false", "[1]")) + END, True),
        (f"Hi{BEGIN}{BAD}{END}", False),
        (BEGIN + call("other") + END, False),
        (BEGIN, False),
        (f"Hi {GOOD}", False),
        (f"Hi {OPEN}tool_calls >\n{GOOD}{END}", False),
        (f"Hi {OPEN}tool_calls>{GOOD}{END}", False),
        ("Hi <|DSML|tool_calls>\n", False),
        ('<tool_calls a="1">\n<invoke name="weather">', False),
        (f"Hi{BEGIN}{GOOD}{END}{BEGIN}{BAD}{END}", False),
    ],
)
def test_free_calls_of_strict_tools(answer: str, allowed: bool) -> None:
    """Any text, until calls begin. A tool that is not strict may be called with anything."""
    assert holds(ask(HI, tools=(STRICT, CLOCK)), answer) == allowed


def test_a_custom_tools_grammar_holds_where_calls_are_free() -> None:
    request = ask(HI, tools=(WEATHER, PATCH))
    good, bad = parameter("input", "true", "*** Begin\nabc"), parameter("input", "true", "abc")
    assert holds(request, f"Hi{BEGIN}{BAD}{call('patch', good)}{END}")
    assert not holds(request, f"Hi{BEGIN}{call('patch', bad)}{END}")


PIECES = [
    *("Hi", " ", "\n", "<", ">", OPEN, CLOSE, "tool_calls", "tool_calls>\n", "invoke", "</think>"),
    *(
        "<tool_calls>",
        '<invoke name="weather">',
        "<|DSML|tool_calls>\n",
        "<DSML｜",
        "<｜｜DSML｜｜",
    ),
    *(BEGIN, GOOD, BAD, END, call("clock"), OSLO),
]


@given(st.lists(st.sampled_from(PIECES), max_size=7).map("".join))
@settings(max_examples=300)
def test_no_call_that_is_read_is_against_a_strict_tool(answer: str) -> None:
    request = ask(HI, tools=(STRICT, CLOCK), thinking=Thinking(enabled=False))
    chat = chat_format()
    parser = chat.new_parser(request, chat.render(request))
    events = [*parser.feed(answer), *parser.finish()]
    named = [event.name for event in events if isinstance(event, ToolCallStarted)]
    if named and holds(request, answer):
        assert answer.count(GOOD) == named.count("weather")
        assert BAD not in answer


@pytest.mark.parametrize("form", [JsonSchema({"type": "object"}), Choice(("a", "b"))])
def test_a_form_alone_is_held_to_as_it_is(form: JsonSchema | Choice) -> None:
    assert chat_format().output_format(ask(HI, output_format=form)) is form
    silent = ask(HI, output_format=form, tools=(CLOCK,), tool_choice="none")
    assert chat_format().output_format(silent) is form
    assert chat_format().output_format(ask(HI, tools=(CLOCK,))) is None


@pytest.mark.parametrize(
    "request_",
    [
        ask(HI, tool_choice="required"),
        ask(HI, tools=(CLOCK,), tool_choice=NamedTool("weather")),
    ],
)
def test_a_call_of_nothing_is_refused(request_: GenerationRequest) -> None:
    with pytest.raises(RequestError):
        chat_format().output_format(request_)


def test_what_the_grammar_allows_is_read_as_it_was_meant() -> None:
    request = ask(HI, tools=(WEATHER,), tool_choice="required")
    text = BEGIN + call("weather", OSLO, parameter("days", "false", "3")) + END
    assert holds(request, text)
    chat = chat_format()
    parser = chat.new_parser(request, chat.render(request))
    events = [*parser.feed(f"Hm</think>{text}"), *parser.finish()]
    arguments = "".join(getattr(event, "text", "") for event in events[2:])
    assert json.loads(arguments) == {"city": 'Oslo </b> "x"\n', "days": 3}
