"""Chats: messages, tools, thinking and logprobs in all their shapes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from asking import CHAT, HELLO, asked, refused
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.protocols.tools import lark_grammar
from ds4trio.request import Conversation, Message, NamedTool, Thinking, ToolCall, ToolSpec

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How it is",
        "parameters": PARAMETERS,
        "strict": True,
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
PATCH: dict[str, Any] = {
    "type": "custom",
    "custom": {
        "name": "apply_patch",
        "format": {
            "type": "grammar",
            "grammar": {"syntax": "lark", "definition": 'start: "x"'},
        },
    },
}


def test_messages_in_all_their_shapes() -> None:
    prompt = asked(
        CHAT,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "latest_reminder", "content": "It is late."},
            {"role": "user", "content": [{"type": "text", "text": "a\n"}], "name": "Ann"},
            {"role": "assistant", "content": "", "tool_calls": []},
            {"role": "user", "content": [{"type": "text", "text": "b"}, "c"]},
            {"role": "assistant", "content": None, "refusal": "No."},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"role": "system", "content": "\u0000"},
        ],
    ).prompt
    assert prompt == Conversation(
        (
            Message("developer", "Be brief."),
            Message("latest_reminder", "It is late."),
            Message("user", "a\n", "Ann"),
            Message("assistant", ""),
            Message("user", "bc"),
            Message("assistant", "No."),
            Message("assistant", "No."),
            Message("system", "\u0000"),
        )
    )


def test_tool_calls_reasoning_and_results_come_back() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    prompt = asked(
        CHAT,
        messages=[
            *HELLO["messages"],
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Hm.",
                "tool_calls": [
                    call,
                    {"id": "call_2", "function": {"name": "g", "arguments": {"b": "\u00e9"}}},
                    {"id": "call_3", "type": "custom", "custom": {"name": "h", "input": "x\ny"}},
                ],
            },
            {"role": "tool", "tool_call_id": "call_3", "content": [{"type": "text", "text": "3"}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "1"},
            {"role": "assistant", "content": "So.", "reasoning": "Well."},
        ],
    ).prompt
    assert isinstance(prompt, Conversation)
    assert prompt.messages[1:] == (
        Message(
            "assistant",
            "",
            reasoning="Hm.",
            tool_calls=(
                ToolCall("call_1", "f", '{"a":1}'),
                ToolCall("call_2", "g", '{"b": "\u00e9"}'),
                ToolCall("call_3", "h", "x\ny"),
            ),
        ),
        Message("tool", "3", tool_call_id="call_3"),
        Message("tool", "1", tool_call_id="call_1"),
        Message("assistant", "So.", reasoning="Well."),
    )


def test_null_is_absent_within_a_message_too() -> None:
    message = {
        "role": "assistant",
        **dict.fromkeys(["content", "name", "tool_calls", "reasoning", "function_call"]),
    }
    assert asked(CHAT, messages=[message]).prompt == Conversation((Message("assistant", ""),))


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hello", "messages"),
        ([None], "messages[0]"),
        (["Hello"], "messages[0]"),
        ([{"content": "Hello"}], "messages[0].role"),
        ([{"role": "wizard", "content": "Hello"}], "messages[0].role"),
        ([*HELLO["messages"], {"role": 5}], "messages[1].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": 5}]}],
            "messages[0].content[0].text",
        ),
        ([{"role": "user", "content": "", "name": 5}], "messages[0].name"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"type": "custom"}]}],
            "messages[0].tool_calls[0].custom",
        ),
    ],
)
def test_wrong_messages(messages: object, param: str) -> None:
    error = refused(CHAT, messages=messages)
    assert (error.param, error.code) == (param, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"messages": [{"role": "function", "name": "f", "content": "4"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "What is it?"},
                            {"type": "image_url", "image_url": {"url": "data:,"}},
                        ],
                    }
                ]
            },
            "messages[0].content[1].type",
        ),
    ],
)
def test_what_chat_does_not_serve(fields: dict[str, object], param: str) -> None:
    error = refused(CHAT, **fields)
    assert (error.param, error.code) == (param, "unsupported_parameter")


def test_functions_that_are_only_named_to_forbid_them_are_served() -> None:
    assert asked(CHAT, functions=[{"name": "f"}], function_call="none") == asked(CHAT)


# --- tools ---


def test_tools_of_both_kinds() -> None:
    request = asked(CHAT, tools=[WEATHER, TIME, PATCH], parallel_tool_calls=False)
    assert request.tools == (
        ToolSpec("get_weather", "How it is", PARAMETERS, strict=True),
        ToolSpec("get_time"),
        ToolSpec("apply_patch", grammar='start: "x"'),
    )
    assert request.tool_choice == "auto"
    assert not request.parallel_tool_calls


@pytest.mark.parametrize("format_", [None, {"type": "text"}, {}])
def test_a_custom_tool_without_a_grammar_takes_any_text(format_: object) -> None:
    tool = {"type": "custom", "custom": {"name": "run", "format": format_}}
    assert asked(CHAT, tools=[tool]).tools == (ToolSpec("run", grammar=""),)


def test_tools_of_unknown_kinds_are_skipped() -> None:
    unknown = [{"type": "web_search"}, {"type": "mcp", "server_url": "http://x"}]
    assert asked(CHAT, tools=[*unknown, TIME]).tools == (ToolSpec("get_time"),)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "get_time"}}, NamedTool("get_time")),
        ({"type": "custom", "custom": {"name": "apply_patch"}}, NamedTool("apply_patch")),
    ],
)
def test_tool_choices(sent: object, read: object) -> None:
    request = asked(CHAT, tools=[TIME, PATCH], tool_choice=sent)
    assert request.tool_choice == read
    assert len(request.tools) == 2


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_ones(mode: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [TIME]}}
    request = asked(CHAT, tools=[WEATHER, TIME], tool_choice=choice)
    assert request.tools == (ToolSpec("get_time"),)
    assert request.tool_choice == mode


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "x"}}}]},
            "tools[0].custom.format.type",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"tool_choice": "any", "tools": [TIME]}, "tool_choice"),
        ({"tool_choice": {"type": "x"}, "tools": [TIME]}, "tool_choice.type"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TIME]},
            "tool_choice.function.name",
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [WEATHER]},
                },
                "tools": [TIME],
            },
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_wrong_tools(fields: dict[str, object], param: str) -> None:
    assert refused(CHAT, **fields).param == param


@given(
    st.text(st.sampled_from("a/\\.")).filter(
        # A pattern that ends within an escape is none.
        lambda pattern: (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 0
    )
)
def test_a_regex_as_a_grammar_is_the_same_regex(pattern: str) -> None:
    """Slashes end a pattern in Lark; escaped they mean themselves, to Python's engine too."""
    grammar = lark_grammar("regex", pattern, "p")
    found = re.fullmatch(r"start: /((?:[^/\\]|\\.)*)/", grammar)
    assert found is not None
    inside = found[1]
    assert re.sub(r"\\(.)", r"\1", inside) == re.sub(r"\\(.)", r"\1", pattern)


# --- thinking and logprobs ---


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"reasoning_effort": "high"}, Thinking(True, "high")),
        ({"reasoning_effort": "none"}, Thinking(False, "none")),
        ({"reasoning": {"effort": "low"}}, Thinking(True, "low")),
        ({"reasoning": {"enabled": False}}, Thinking(False)),
        ({"reasoning": {"max_tokens": 9}}, Thinking(True, None, 9)),
        ({"thinking": True}, Thinking(True)),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, Thinking(True, None, 7)),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        ({"thinking": {"type": "adaptive"}}, Thinking()),
        ({"enable_thinking": True, "thinking_budget": 5}, Thinking(True, None, 5)),
        ({"thinking_budget": 0}, Thinking(False)),
        ({"think": False}, Thinking(False)),
        ({"chat_template_kwargs": {"enable_thinking": False, "x": 1}}, Thinking(False)),
        ({"chat_template_kwargs": {"thinking": True}}, Thinking(True)),
        ({"reasoning_effort": "max", "thinking": {"type": "disabled"}}, Thinking(False, "max")),
        ({"reasoning_effort": "none", "thinking": {"type": "enabled"}}, Thinking(False, "none")),
    ],
)
def test_thinking_in_all_its_spellings(fields: dict[str, object], thinking: Thinking) -> None:
    assert asked(CHAT, **fields).thinking == thinking


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "hardest"}, "reasoning_effort"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": {"budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
def test_wrong_thinking_and_logprobs(fields: dict[str, object], param: str) -> None:
    assert refused(CHAT, **fields).param == param


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_of_a_chat(fields: dict[str, object], logprobs: int | None) -> None:
    assert asked(CHAT, **fields).logprobs == logprobs
