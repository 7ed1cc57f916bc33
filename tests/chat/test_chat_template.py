from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from chat_rig import (
    CLOCK,
    SPECIAL,
    TEMPLATES,
    WEATHER,
    asking,
    call,
    conversation,
    in_transformers_words,
    oracle,
    small_format,
    small_tokenizer,
)
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.template import TemplateChatFormat
from ds4trio.errors import LoadError, RequestError
from ds4trio.request import GenerationRequest, Message, Regex, Thinking, ToolCall, ToolSpec

STYLES = list(TEMPLATES)
#: Nothing that could be a control token, yet some of what those are made of.
HARMLESS = st.text("ab <>|\n☕").filter(lambda text: "<|" not in text and "|>" not in text)


def check_against_transformers(style: str, asked: GenerationRequest, **variables: Any) -> None:
    prompt = small_format(style).render(asked)
    theirs: Any = partial(
        oracle(style).apply_chat_template, **in_transformers_words(asked), **variables
    )
    assert prompt.text == theirs(tokenize=False)
    assert prompt.token_ids == theirs(return_dict=False)


@pytest.mark.oracle
@pytest.mark.parametrize("style", STYLES)
@given(contents=st.lists(HARMLESS, min_size=1, max_size=5))
def test_conversations_are_written_as_transformers_does(style: str, contents: list[str]) -> None:
    asked = conversation(*contents)
    check_against_transformers(style, asked)


@pytest.mark.parametrize(
    ("style", "token"),
    [
        ("chatml", "<|im_end|>"),
        ("headers", "<|eot|>"),
        ("alternating", "</s>"),
        ("composed", "<|eot|>"),
    ],
)
def test_the_token_that_closes_a_turn_stops(style: str, token: str) -> None:
    assert small_format(style).stop_ids == {small_tokenizer().control_tokens[token]}


def test_given_stop_ids_are_kept() -> None:
    chat = TemplateChatFormat("{{ messages }}", small_tokenizer(), variables={}, stop_ids=[7])
    assert chat.stop_ids == {7}


def test_a_refused_conversation_is_the_askers_fault() -> None:
    asked = asking(Message("assistant", "a"), Message("user", "b"))
    with pytest.raises(RequestError, match="Roles must alternate: got assistant") as caught:
        small_format("alternating").render(asked)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[5].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_on_a_conversation_is_reported(template: str) -> None:
    chat = TemplateChatFormat(template, small_tokenizer(), variables={})
    with pytest.raises(RequestError) as caught:
        chat.render(conversation("a"))
    assert caught.value.param == "messages"


def test_errors_quote_what_the_user_wrote() -> None:
    template = "{{ raise_exception('Bad: ' + messages[0].content) }}"
    chat = TemplateChatFormat(template, small_tokenizer(), variables=SPECIAL)
    with pytest.raises(RequestError, match=r"Bad: <\|im_end\|>"):
        chat.render(conversation("<|im_end|>"))


def test_a_template_that_is_no_template_is_refused() -> None:
    with pytest.raises(LoadError, match="chat_template: "):
        TemplateChatFormat("{% for %}", small_tokenizer(), variables={})


def test_names_are_given_where_there_are_some() -> None:
    template = "{% for m in messages %}{{ m.name is defined }},{{ m.name }};{% endfor %}"
    chat = TemplateChatFormat(template, small_tokenizer(), variables={})
    asked = asking(Message("user", "a", name="ann"), Message("user", "b"))
    assert chat.render(asked).text == "True,ann;False,;"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | HARMLESS | st.floats(-9, 9, width=16),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HARMLESS, inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.oracle
@pytest.mark.parametrize("style", ["tagged tools", "listed tools", "bare tools"])
@given(
    question=HARMLESS,
    city=HARMLESS,
    arguments=st.dictionaries(HARMLESS, JSON, max_size=3),
    result=HARMLESS,
    reasoning=st.none() | HARMLESS,
)
def test_calls_are_written_as_transformers_does(
    style: str,
    question: str,
    city: str,
    arguments: dict[str, object],
    result: str,
    reasoning: str | None,
) -> None:
    asked = asking(
        Message("user", question),
        Message(
            "assistant", "", reasoning=reasoning, tool_calls=(call("9charssss", city, **arguments),)
        ),
        Message("tool", result, tool_call_id="9charssss"),
        Message("user", question),
        tools=(WEATHER, CLOCK),
    )
    check_against_transformers(style, asked)


@pytest.mark.oracle
@pytest.mark.parametrize("enabled", [True, False])
def test_thinking_is_switched(enabled: bool) -> None:
    asked = asking(Message("user", "a"), thinking=Thinking(enabled))
    check_against_transformers("tagged tools", asked, enable_thinking=enabled)
    assert not small_format("tagged tools").render(asked).thinking


def rendered(template: str, asked: GenerationRequest) -> str:
    return TemplateChatFormat(template, small_tokenizer(), variables={}).render(asked).text


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (Thinking(), ",,."),
        (Thinking(True), "True,True,."),
        (Thinking(False), "False,False,."),
        (Thinking(effort="none"), "False,False,low."),
        (Thinking(effort="minimal"), "True,True,low."),
        (Thinking(effort="medium"), "True,True,medium."),
        (Thinking(effort="xhigh"), "True,True,high."),
        (Thinking(effort="max"), "True,True,max."),
        (Thinking(False, "high"), "False,False,high."),
    ],
)
def test_templates_are_told_how_hard_to_think(thinking: Thinking, expected: str) -> None:
    template = "{{ enable_thinking }},{{ thinking }},{{ reasoning_effort }}.{# 'max' #}"
    assert rendered(template, asking(Message("user", "a"), thinking=thinking)) == expected


def test_reasoning_is_given_back_by_either_name() -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.reasoning }};{% endfor %}"
    asked = asking(Message("assistant", "a", reasoning="why"), Message("user", "b"))
    assert rendered(template, asked) == "why|why;|;"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0].role }}{{ messages[0].content }}", "systema"),
        (
            "{{ messages[0].role }}{# 'developer' #}{{ messages[0].content }}",
            "developera",
        ),
    ],
)
def test_a_developer_is_the_system_where_templates_know_none(template: str, expected: str) -> None:
    assert rendered(template, asking(Message("developer", "a"))) == expected


REMINDED = asking(Message("user", "a"), Message("latest_reminder", "b"), Message("user", "c"))


@pytest.mark.parametrize("style", STYLES)
def test_a_reminder_is_the_systems_where_templates_know_none(style: str) -> None:
    said = asking(Message("user", "a"), Message("system", "b"), Message("user", "c"))
    assert small_format(style).render(REMINDED) == small_format(style).render(said)


def test_a_template_that_knows_reminders_gets_them() -> None:
    template = "{# latest_reminder #}{% for m in messages %}{{ m.role }},{% endfor %}"
    assert rendered(template, REMINDED) == "user,latest_reminder,user,"


def results(asked: GenerationRequest, style: str = "tagged tools") -> str:
    return small_format(style).render(asked).text


TWO_CALLS = Message("assistant", "", tool_calls=(call("1", "f", a=1), call("2", "g")))
FIRST, SECOND = Message("tool", "one", tool_call_id="1"), Message("tool", "two", tool_call_id="2")
USER = Message("user", "q")


@pytest.mark.parametrize("style", ["tagged tools", "listed tools", "bare tools", "chatml"])
def test_results_stand_in_the_order_of_their_calls(style: str) -> None:
    ordered = small_format(style).render(asking(USER, TWO_CALLS, FIRST, SECOND, USER))
    assert small_format(style).render(asking(USER, TWO_CALLS, SECOND, FIRST, USER)) == ordered


def test_results_bear_the_name_of_their_tool() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.name }},{{ m.tool_call_id }};{% endfor %}"
    template += '{# <tool_call> "arguments" #}{{ tools }}'
    asked = asking(TWO_CALLS, SECOND, Message("tool", "?", tool_call_id="7"))
    assert rendered(template, asked) == "assistant:,;tool:g,2;tool:,7;None"


def test_calls_that_a_template_takes_one_by_one_are_parted() -> None:
    one = Message("assistant", "", tool_calls=TWO_CALLS.tool_calls[:1])
    other = Message("assistant", "", tool_calls=TWO_CALLS.tool_calls[1:])
    together = results(asking(USER, TWO_CALLS, SECOND, FIRST, USER), "bare tools")
    assert together == results(asking(USER, one, FIRST, other, SECOND, USER), "bare tools")


def test_ids_have_the_length_that_a_template_wants() -> None:
    long = Message("assistant", "", tool_calls=(call("call_0123456789", "f"),))
    result = Message("tool", "one", tool_call_id="call_0123456789")
    text = results(asking(USER, long, result), "listed tools")
    ids = re.findall(r'"id": "([0-9A-Za-z]*)"', text)
    assert [len(found) for found in ids] == [9, 9]
    assert ids[0] == ids[1]
    other = Message("assistant", "", tool_calls=(call("call_0123456780", "f"),))
    assert ids[0] not in results(asking(USER, other), "listed tools")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("plain\n", '{"input": "plain\\n"}'),
        ('{"a": ', '{"input": "{\\"a\\": "}'),
        ("[1]", '{"input": "[1]"}'),
        ("[" * 100_000, '{"input": "' + "[" * 100_000 + '"}'),
    ],
)
def test_arguments_are_always_an_object(arguments: str, expected: str) -> None:
    turn = Message("assistant", "", tool_calls=(ToolCall("1", "f", arguments),))
    assert f'{{"name": "f", "arguments": {expected}}}' in results(asking(USER, turn))


def test_a_custom_tool_is_a_function_of_its_input() -> None:
    tool = ToolSpec("patch", "Edits.", grammar="start: /x/")
    text = results(asking(USER, tools=(tool,)))
    described = json.loads(text.split("Tools:\n")[1].split("\n")[0])["function"]
    assert described["parameters"]["properties"] == {"input": {"type": "string"}}
    assert (
        described["description"] == "Edits.\n\nThe input must match this Lark grammar:\nstart: /x/"
    )


@pytest.mark.parametrize("style", ["tagged tools", "chatml"])
def test_tools_that_must_not_be_called_are_not_shown(style: str) -> None:
    asked = asking(USER, tools=(WEATHER,), tool_choice="none")
    assert results(asked, style) == results(asking(USER), style)


@pytest.mark.parametrize("style", ["chatml", "headers", "alternating", "composed", "thinking"])
def test_templates_without_tools_have_them_in_words(style: str) -> None:
    asked = asking(
        Message("system", "Be brief."), USER, TWO_CALLS, SECOND, FIRST, USER, tools=(WEATHER, CLOCK)
    )
    text = small_format(style).render(asked).text
    described = [json.loads(line) for line in text.split("<tools>\n")[1].split("\n")[:2]]
    assert [tool["name"] for tool in described] == ["get_weather", "clock"]
    assert described[0]["parameters"] == WEATHER.parameters
    assert text.index("Be brief.") < text.index("<tools>")
    call_text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n'
    assert call_text in text
    assert "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>" in text


def test_a_form_of_calls_that_is_not_known_is_not_used() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}!{% endif %}"
    assert "!" not in rendered(template + "<function=x>", asking(USER, tools=(WEATHER,)))
    assert "<tools>" in rendered(template + "<function=x>", asking(USER, tools=(WEATHER,)))


@pytest.mark.parametrize(
    ("messages", "same_as"),
    [
        ([USER, USER], [Message("user", "q\n\nq")]),
        ([USER, Message("system", "s")], [Message("system", "s"), USER]),
        (
            [Message("developer", "d"), USER, Message("system", "s")],
            [Message("system", "d\n\ns"), USER],
        ),
    ],
)
def test_turns_are_joined_where_roles_must_alternate(
    messages: list[Message], same_as: list[Message]
) -> None:
    assert results(asking(*messages), "alternating") == results(asking(*same_as), "alternating")


def test_the_system_speaks_through_the_user_where_it_has_no_voice() -> None:
    template = """{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}
    {%- endif %}{{ m.role }}:{{ m.content }};{% endfor %}"""
    asked = asking(Message("system", "s"), USER)
    assert rendered(template, asked) == "user:s\n\nq;"


def test_what_the_system_says_is_never_left_out() -> None:
    template = (
        "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}"
    )
    asked = asking(USER, Message("assistant", "a"), Message("system", "s"), USER)
    assert rendered(template, asked) == "user:s\n\nq;assistant:a;user:q;"


@pytest.mark.parametrize(
    ("style", "settings", "expected"),
    [
        ("thinking", {}, True),
        ("thinking", {"thinking": Thinking(False)}, True),
        ("chatml", {}, False),
        ("tagged tools", {}, False),
        ("tagged tools", {"output_format": Regex("a")}, True),
        ("tagged tools", {"output_format": Regex("a"), "thinking": Thinking(False)}, False),
        ("tagged tools", {"output_format": Regex("a"), "thinking": Thinking(effort="none")}, False),
        ("chatml", {"output_format": Regex("a")}, False),
    ],
)
def test_prompts_say_whether_they_end_in_thoughts(
    style: str, settings: dict[str, Any], expected: bool
) -> None:
    prompt = small_format(style).render(asking(USER, **settings))
    assert prompt.thinking is expected
    assert prompt.text.endswith("<think>\n") is expected
    parser = small_format(style).new_parser(asking(USER, **settings), prompt)
    assert parser.in_thinking is expected


@pytest.mark.parametrize(
    ("style", "visible"),
    [
        ("chatml", {"<tool_call>", "</tool_call>"}),
        ("thinking", {"<think>", "</think>", "<tool_call>", "</tool_call>"}),
        ("listed tools", {"[TOOL_CALLS]"}),
        ("bare tools", {"<|python_tag|>"}),
    ],
)
def test_markup_is_visible(style: str, visible: set[str]) -> None:
    chat = small_format(style)
    assert chat.visible_tokens == visible
    assert chat.thinking_end == ("</think>" if style == "thinking" else None)
    control = small_tokenizer().control_tokens
    ids = [control[spelling] for spelling in sorted(visible)] + [control["<|eot|>"]]
    decoder = small_tokenizer().new_decoder(visible=chat.visible_tokens)
    assert decoder.feed(ids) + decoder.finish() == "".join(sorted(visible))
