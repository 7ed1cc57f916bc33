"""Requests of Anthropic's endpoint: what its clients send, and what is refused by which name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asking import HELLO, MESSAGES, asked, parse, refused

from ds4trio.request import (
    Conversation,
    GenerationRequest,
    JsonSchema,
    Message,
    NamedTool,
    SamplingParams,
    Thinking,
    ToolCall,
    ToolSpec,
)

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: dict[str, Any] = {"name": "get_weather", "description": "How", "input_schema": SCHEMA}
FETCH: dict[str, Any] = {
    "name": "WebFetch",
    "description": "Get a page",
    "input_schema": {"type": "object"},
    "defer_loading": True,
}


def messages(*turns: dict[str, Any], **fields: object) -> tuple[Message, ...]:
    prompt = asked(MESSAGES, messages=list(turns), **fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def test_the_least() -> None:
    parsed = parse(MESSAGES)
    assert parsed.generation == GenerationRequest(Conversation((Message("user", "Hello"),)))
    assert not parsed.stream


def test_everything_that_is_served_is_read() -> None:
    parsed = parse(
        MESSAGES,
        model="mine",
        max_tokens=32000,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["\n\nHuman:", "END"],
        stream=True,
        system="Be brief.",
        tools=[{**WEATHER, "strict": True}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
    )
    assert parsed.stream
    assert parsed.generation == GenerationRequest(
        Conversation((Message("system", "Be brief."), Message("user", "Hello"))),
        model="mine",
        sampling=SamplingParams(0.5, 0.9, 40),
        max_tokens=32000,
        stop=("\n\nHuman:", "END"),
        tools=(ToolSpec("get_weather", "How", SCHEMA, strict=True),),
        parallel_tool_calls=False,
        output_format=JsonSchema(SCHEMA),
        thinking=Thinking(True, "high", 1024),
    )


def test_what_cannot_change_the_answer_is_ignored() -> None:
    extras = {
        "metadata": {"user_id": "{}"},
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "service_tier": "auto",
        "container": "c",
        "betas": ["x"],
        "mcp_servers": [],
        "safeguards": [{"type": "dangerous_tool_use"}],
        "thinking": {"type": "adaptive", "display": "omitted"},
        "never_heard_of": 1,
    }
    assert asked(MESSAGES, **extras) == asked(MESSAGES)


# --- what Claude Code sends ---


def test_the_billing_block_is_dropped_and_the_rest_are_paragraphs() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.332.16f; cc_entrypoint=sdk-cli;"
    system = [
        {"type": "text", "text": billing},
        {"type": "text", "text": "You are it.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief."},
    ]
    assert messages(user({"type": "text", "text": "Hi"}), system=system) == (
        Message("system", "You are it.\nBe brief."),
        Message("user", "Hi"),
    )


def test_a_system_message_may_stand_anywhere() -> None:
    said = {"role": "system", "content": [{"type": "text", "text": "Now."}]}
    assert messages(*HELLO["messages"], said) == (
        Message("user", "Hello"),
        Message("system", "Now."),
    )


def test_a_tool_round_trip_with_thinking() -> None:
    assert messages(
        user({"type": "text", "text": "<a/>"}, {"type": "text", "text": "Go"}),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me see."},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "Bash",
                    "input": {"command": "\u00e9"},
                },
                {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {}},
            ],
        },
        user(
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                "cache_control": {"type": "ephemeral"},
            },
            {"type": "text", "text": "Go on"},
        ),
    ) == (
        Message("user", "<a/>\nGo"),
        Message(
            "assistant",
            "Let me see.",
            reasoning="Hm.",
            tool_calls=(
                ToolCall("toolu_1", "Bash", '{"command": "\u00e9"}'),
                ToolCall("toolu_2", "Bash", "{}"),
            ),
        ),
        Message("tool", "Error: no", tool_call_id="toolu_2"),
        Message("tool", "a\nb", tool_call_id="toolu_1"),
        Message("user", "Go on"),
    )


def test_text_and_tool_results_keep_their_order() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "r"}
    said = [{"type": "text", "text": text} for text in "abc"]
    assert messages(user(said[0], result, said[1], said[2])) == (
        Message("user", "a"),
        Message("tool", "r", tool_call_id="1"),
        Message("user", "b\nc"),
    )


def test_thinking_that_was_left_out_says_nothing() -> None:
    blocks = [
        {"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "text", "text": "Hi"},
    ]
    assert messages({"role": "assistant", "content": blocks}) == (Message("assistant", "Hi"),)


def test_a_deferred_tool_is_told_of_where_a_result_names_it() -> None:
    found = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [
            {"type": "tool_reference", "tool_name": "WebFetch"},
            {"type": "tool_reference", "tool_name": "Gone"},
        ],
    }
    request = asked(MESSAGES, messages=[user(found)], tools=[WEATHER, FETCH])
    assert [tool.name for tool in request.tools] == ["get_weather"]
    assert isinstance(request.prompt, Conversation)
    (result,) = request.prompt.messages
    told, gone = result.content.split("\n")
    assert gone == "Gone"
    assert json.loads(told.removeprefix("<function>").removesuffix("</function>")) == {
        "name": "WebFetch",
        "description": "Get a page",
        "parameters": {"type": "object"},
    }


def test_a_deferred_tool_that_must_be_called_is_listed() -> None:
    choice = {"type": "tool", "name": "WebFetch"}
    request = asked(MESSAGES, tools=[WEATHER, FETCH], tool_choice=choice)
    assert [tool.name for tool in request.tools] == ["get_weather", "WebFetch"]
    assert request.tool_choice == NamedTool("WebFetch")


def test_tools_may_change_in_the_middle() -> None:
    turn = {
        "role": "system",
        "content": [
            {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "WebFetch"}},
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": WEATHER}},
            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "Bash"}},
        ],
    }
    (message,) = messages(turn, tools=[FETCH])
    added, defined, removed = message.content.split("\n")
    assert '"WebFetch"' in added
    assert '"get_weather"' in defined
    assert removed == "The tool Bash is gone."


def test_what_only_anthropics_server_runs_is_skipped() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "custom", **WEATHER},
    ]
    ran = [
        {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "1",
            "content": [{"type": "web_search_result", "url": "u", "title": "t"}],
        },
        {
            "type": "code_execution_tool_result",
            "tool_use_id": "2",
            "content": {"type": "code_execution_result", "stdout": "x"},
        },
        {"type": "text", "text": "Found."},
    ]
    request = asked(MESSAGES, tools=tools, messages=[{"role": "assistant", "content": ran}])
    assert [tool.name for tool in request.tools] == ["get_weather"]
    assert request.prompt == Conversation((Message("assistant", "Found."),))


def test_documents_and_search_results_are_text() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "Once."}
    nested = {"type": "content", "content": [{"type": "text", "text": "Upon."}]}
    result = {
        "type": "search_result",
        "source": "http://x",
        "title": "X",
        "content": [{"type": "text", "text": "A time."}],
    }
    assert messages(
        user(
            {"type": "document", "title": "Tale", "context": "old", "source": plain},
            {"type": "document", "source": nested},
            result,
        )
    ) == (Message("user", "Tale\nold\nOnce.\nUpon.\nX\nhttp://x\nA time."),)


# --- choices ---


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (None, "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "get_weather"}, NamedTool("get_weather")),
    ],
)
def test_tool_choices(sent: object, read: object) -> None:
    request = asked(MESSAGES, tools=[WEATHER], tool_choice=sent)
    assert request.tool_choice == read
    assert request.parallel_tool_calls


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            Thinking(None, "max"),
        ),
        ({"thinking": {"type": "enabled"}}, Thinking(True)),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, Thinking(False)),
        (
            {"thinking": {"type": "enabled"}, "output_config": {"effort": "none"}},
            Thinking(False, "none"),
        ),
    ],
)
def test_thinking(fields: dict[str, object], thinking: Thinking) -> None:
    assert asked(MESSAGES, **fields).thinking == thinking


def test_the_older_name_of_an_output_format() -> None:
    format_ = {"type": "json_schema", "schema": SCHEMA}
    assert asked(MESSAGES, output_format=format_).output_format == JsonSchema(SCHEMA)


# --- what is refused, and by which name ---

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": ""},
}


@pytest.mark.parametrize(
    ("block", "param"),
    [
        (IMAGE, "messages[0].content[0].type"),
        (PDF, "messages[0].content[0].source"),
        ({"type": "container_upload", "file_id": "f"}, "messages[0].content[0].type"),
        (
            {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]},
            "messages[0].content[0].content[0].type",
        ),
    ],
)
def test_what_this_model_cannot_read(block: dict[str, Any], param: str) -> None:
    error = refused(MESSAGES, messages=[user(block)])
    assert (error.param, error.code) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"content": ""}]}, "messages[0].role"),
        ({"messages": [user({"text": "a"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "tool_result"})]}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": [user({"type": "tool_result", "tool_use_id": "1", "content": {}})]},
            "messages[0].content[0].content",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]}]},
            "messages[0].content[0].name",
        ),
        ({"system": [{"type": "text"}]}, "system[0].text"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": ""}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "f"}, "tools": [WEATHER]}, "tool_choice.name"),
        ({"thinking": {"type": "x"}}, "thinking.type"),
        ({"thinking": {"budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "x"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "x"}}}, "output_config.format.type"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        (
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "output_format",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], param: str) -> None:
    assert refused(MESSAGES, **fields).param == param


def test_counting_reads_the_same_body_without_max_tokens() -> None:
    body = {**HELLO, "model": "m", "system": "Be brief.", "tools": [WEATHER]}
    counted = MESSAGES.parse_count_tokens(json.dumps(body).encode())
    assert counted == MESSAGES.parse(json.dumps(body).encode(), "served").generation
    assert json.loads(MESSAGES.render_count_tokens(9)) == {"input_tokens": 9}
