"""What a model is held to, checked with the library that will hold it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chat_rig import CLOCK, WEATHER, asking, small_format
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from test_chat_tool_parser import told

from ds4trio.errors import RequestError
from ds4trio.request import (
    Choice,
    GenerationRequest,
    JsonSchema,
    LarkGrammar,
    Message,
    NamedTool,
    OutputFormat,
    Regex,
    ToolSpec,
)

BYTES = LLTokenizer("byte")
TOOLS = (WEATHER, CLOCK)
CUSTOM = ToolSpec("patch", grammar="")
STYLES = ["tagged tools", "listed tools", "bare tools", "chatml"]


def asked(**settings: Any) -> GenerationRequest:
    return asking(Message("user", "q"), **{"tools": TOOLS, **settings})


def form_of(style: str, request: GenerationRequest) -> str:
    form = small_format(style).output_format(request)
    assert isinstance(form, LarkGrammar)
    return form.grammar


def allows(grammar: str, text: str) -> bool:
    """Whether the text is one of the grammar's, from beginning to end."""
    compiled = LLMatcher.grammar_from_lark(grammar)
    assert LLMatcher.validate_grammar(compiled, BYTES) == ""
    matcher = LLMatcher(BYTES, compiled)
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def written(style: str, *calls: tuple[str, str]) -> str:
    """Calls as a template of this style writes them."""
    key = "parameters" if style == "bare tools" else "arguments"
    texts = [f'{{"name": "{name}", "{key}": {arguments}}}' for name, arguments in calls]
    if style == "listed tools":
        return "[TOOL_CALLS][" + ", ".join(texts) + "]"
    if style == "bare tools":
        return "; ".join(texts)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


PARIS = ("get_weather", '{"city": "Paris", "days": 2}')
NOW = ("clock", "{}")


@pytest.mark.parametrize("style", STYLES)
def test_a_required_call_is_a_call(style: str) -> None:
    grammar = form_of(style, asked(tool_choice="required"))
    assert allows(grammar, written(style, PARIS))
    assert allows(grammar, written(style, NOW))
    assert allows(grammar, written(style, PARIS, NOW)) is (style != "bare tools")
    for text in (
        "",
        "Hello",
        "Hello " + written(style, NOW),
        written(style, ("get_weather", "{}")),
        written(style, ("get_weather", '{"city": 5}')),
        written(style, ("get_weather", '{"days": 5, "city": "Paris"}')),
        written(style, ("clock", "[]")),
        written(style, ("other", "{}")),
        written(style, NOW) + "\n",
    ):
        assert not allows(grammar, text)


@pytest.mark.parametrize("style", STYLES)
def test_a_named_tool_is_the_only_one(style: str) -> None:
    grammar = form_of(style, asked(tool_choice=NamedTool("clock")))
    assert allows(grammar, written(style, NOW))
    assert not allows(grammar, written(style, PARIS))


@pytest.mark.parametrize("style", STYLES)
def test_without_parallel_calls_there_is_one(style: str) -> None:
    grammar = form_of(style, asked(tool_choice="required", parallel_tool_calls=False))
    assert allows(grammar, written(style, PARIS))
    assert not allows(grammar, written(style, PARIS, NOW))


@pytest.mark.parametrize("style", STYLES)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\x7f")), name=st.text(min_size=1)
)
def test_what_is_allowed_is_read_back(style: str, text: str, name: str) -> None:
    tool = ToolSpec(name, "", {"properties": {"t": {"type": "string"}}, "required": ["t"]})
    request = asked(tools=(tool,), tool_choice="required")
    arguments = json.dumps({"t": text}, ensure_ascii=False)
    call = written(style, (json.dumps(name, ensure_ascii=False)[1:-1], arguments))
    assert allows(form_of(style, request), call)
    chat = small_format(style)
    parser = chat.new_parser(request, chat.render(request))
    assert told([*parser.feed(call), *parser.finish()]) == [[name, arguments, True]]


def test_a_schema_may_point_into_itself() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "required": ["a"],
        "$defs": {"n": {"type": "integer"}},
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "additionalProperties": False,
    }
    request = asked(tools=(ToolSpec("f", "", schema),), tool_choice="required")
    grammar = form_of("tagged tools", request)
    assert allows(grammar, written("tagged tools", ("f", '{"a": 5}')))
    assert not allows(grammar, written("tagged tools", ("f", '{"a": "5"}')))


def test_a_custom_tools_input_is_text() -> None:
    grammar = form_of("tagged tools", asked(tools=(CUSTOM,), tool_choice="required"))
    assert allows(grammar, written("tagged tools", ("patch", '{"input": "a\\nb"}')))
    assert not allows(grammar, written("tagged tools", ("patch", "{}")))


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (JsonSchema({"type": "object", "required": ["a"]}), '{"a": 1}', "{}"),
        (JsonSchema({}), "{}", "[]"),
        (Regex("a/b\\/c[\n/]d"), "a/b/c/d", "a/b/c-d"),
        (LarkGrammar('start: "a" calls\ncalls: /[}0-9]+/  // }'), "a5}", "a"),
        (Choice(("yes", 'no "\\"')), 'no "\\"', "no"),
    ],
)
def test_an_answer_with_a_form_may_call_instead(form: OutputFormat, right: str, wrong: str) -> None:
    for style in STYLES:
        grammar = form_of(style, asked(output_format=form))
        assert allows(grammar, right)
        assert not allows(grammar, wrong)
        assert allows(grammar, written(style, NOW))
        forced = form_of(style, asked(output_format=form, tool_choice="required"))
        assert not allows(forced, right)


@pytest.mark.parametrize(
    "settings", [{}, {"tools": ()}, {"tool_choice": "none"}, {"parallel_tool_calls": False}]
)
def test_free_answers_are_free(settings: dict[str, Any]) -> None:
    assert small_format("tagged tools").output_format(asked(**settings)) is None


@pytest.mark.parametrize("settings", [{"tools": ()}, {"tool_choice": "none"}])
def test_without_tools_the_form_is_the_one_asked_for(settings: dict[str, Any]) -> None:
    form = Regex("a")
    request = asked(output_format=form, **settings)
    assert small_format("tagged tools").output_format(request) is form


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"tool_choice": NamedTool("other")}, "tool_choice"),
        ({"tool_choice": "required", "tools": ()}, "tools"),
        (
            {"tool_choice": NamedTool("p"), "tools": (ToolSpec("p", grammar="start: /x/"),)},
            "tool_choice",
        ),
    ],
)
def test_what_cannot_be_forced_is_refused(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        small_format("tagged tools").output_format(asked(**settings))
    assert caught.value.param == param
