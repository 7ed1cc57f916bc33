"""What the Responses API asks, read and refused."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.errors import RequestError
from ds4trio.protocols.openai_responses import OpenAIResponses
from ds4trio.protocols.wire import ParsedRequest
from ds4trio.request import (
    Conversation,
    JsonSchema,
    Message,
    NamedTool,
    SamplingParams,
    Thinking,
    ToolCall,
    ToolSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.protocols.wire import Continuation
    from ds4trio.request import GenerationRequest

USER = Message("user", "Hi")
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
PATCH = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
GIT = {
    "type": "namespace",
    "name": "git",
    "tools": [
        {"type": "function", "name": "log"},
        {"type": "function", "name": "blame", "defer_loading": True},
    ],
}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}


def parse(**fields: object) -> ParsedRequest:
    numbers = count()
    protocol = OpenAIResponses(new_id=lambda: str(next(numbers)), now=lambda: 1.0)
    return protocol.parse(json.dumps({"input": "Hi", **fields}).encode(), "served")


def asked(**fields: object) -> GenerationRequest:
    return parse(**fields).generation


def messages(items: object, **fields: object) -> Sequence[Message]:
    prompt = asked(input=items, **fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages


def continuation(**fields: object) -> Continuation:
    found = parse(**fields).continuation
    assert found is not None
    return found


def refused(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    return caught.value


# --- input ---


def test_a_string_is_what_the_user_says() -> None:
    assert messages("Hi") == (USER,)


def test_instructions_come_first() -> None:
    assert messages("Hi", instructions="Be kind") == (Message("system", "Be kind"), USER)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
@pytest.mark.parametrize("kind", [{}, {"type": "message"}, {"type": None}], ids=str)
@pytest.mark.parametrize(
    "content",
    [
        "Hi",
        [{"type": "input_text", "text": "H"}, {"type": "output_text", "text": "i"}],
        [{"type": "refusal", "refusal": "Hi"}],
        [{"type": "text", "text": "Hi"}],
    ],
    ids=str,
)
def test_messages(role: str, kind: Mapping[str, object], content: object) -> None:
    (message,) = messages([{**kind, "role": role, "content": content, "id": "m", "status": "x"}])
    assert (message.role, message.content) == (role, "Hi")


def test_what_the_model_said_in_one_turn_is_one_message() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm"}],
        "encrypted_content": None,
    }
    assert messages(
        [
            {"role": "user", "content": "Hi"},
            thought,
            {"role": "assistant", "content": "Let me see"},
            {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
            {
                "type": "function_call",
                "call_id": "b",
                "namespace": "git",
                "name": "log",
                "arguments": "{}",
            },
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"},
            {"type": "function_call_output", "call_id": "b", "output": "none"},
            {
                "type": "function_call_output",
                "call_id": "a",
                "output": [{"type": "input_text", "text": "sunny"}],
            },
            {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
            thought,
            {"role": "assistant", "content": "Sunny"},
        ]
    ) == (
        USER,
        Message(
            "assistant",
            "Let me see",
            reasoning="Hm",
            tool_calls=(
                ToolCall("a", "weather", "{}"),
                ToolCall("b", "git__log", "{}"),
                ToolCall("c", "patch", "x"),
            ),
        ),
        Message("tool", "none", tool_call_id="b"),
        Message("tool", "sunny", tool_call_id="a"),
        Message("tool", "ok", tool_call_id="c"),
        Message("assistant", "Sunny", reasoning="Hm"),
    )


def test_a_summary_is_given_back_as_reasoning_where_there_is_no_more() -> None:
    summary = [{"type": "summary_text", "text": "Hm"}, {"type": "summary_text", "text": "Ah"}]
    (message,) = messages([{"type": "reasoning", "summary": summary, "encrypted_content": "x"}])
    assert message == Message("assistant", "", reasoning="Hm\nAh")


def test_calls_and_results_of_tools_that_the_client_executes() -> None:
    action = {"type": "exec", "command": ["ls"]}
    assert messages(
        [
            {"type": "local_shell_call", "call_id": "a", "id": "l", "action": action},
            {"type": "local_shell_call_output", "id": "a", "output": "README"},
        ]
    ) == (
        Message("assistant", "", tool_calls=(ToolCall("a", "local_shell", json.dumps(action)),)),
        Message("tool", "README", tool_call_id="a"),
    )


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "compaction_trigger"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {}},
        {"type": "image_generation_call", "result": "x"},
        {"type": "invented_tomorrow", "content": 5},
    ],
    ids=lambda item: item["type"],
)
def test_items_that_are_left_out(item: object) -> None:
    assert messages([item, {"role": "user", "content": "Hi"}, item]) == (USER,)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user", "content": [{"type": "input_image"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"type": "message"}, "role"),
        ({"content": "x"}, "type"),
        ({"type": 5}, "type"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
        ({"type": "function_call", "call_id": "a", "arguments": "{}"}, "name"),
        ({"type": "function_call", "call_id": "a", "name": "f"}, "arguments"),
        ({"type": "function_call", "call_id": "a", "name": "f", "arguments": {}}, "arguments"),
        ({"type": "custom_tool_call", "call_id": "a", "name": "f"}, "input"),
        ({"type": "function_call_output", "call_id": "a"}, "output"),
        ({"type": "function_call_output", "output": "x"}, "call_id"),
        (
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]},
            "output[0].type",
        ),
        ({"type": "item_reference"}, "id"),
    ],
    ids=str,
)
def test_items_that_are_refused_by_name(item: object, param: str) -> None:
    assert refused(input=[{"role": "user", "content": "x"}, item]).param == f"input[1].{param}"


@pytest.mark.parametrize("input_", [None, [], [{"type": "compaction"}]], ids=str)
def test_nothing_to_answer(input_: object) -> None:
    assert refused(input=input_).param == "input"


# --- tools ---


def test_tools() -> None:
    strict = {**WEATHER, "name": "strict", "strict": True, "description": "d"}
    request = asked(tools=[WEATHER, strict, PATCH, GIT, {"type": "web_search"}, {"type": "mcp"}])
    assert request.tools == (
        ToolSpec("weather", parameters={"type": "object"}),
        ToolSpec("strict", "d", {"type": "object"}, strict=True),
        ToolSpec("patch", grammar='start: "x"'),
        ToolSpec("git__log"),
        ToolSpec("git__blame"),
    )


def test_a_namespace_that_brings_its_own_separator() -> None:
    (tool,) = asked(tools=[{**GIT, "name": "mcp__git__", "tools": [WEATHER]}]).tools
    assert tool.name == "mcp__git__weather"


@pytest.mark.parametrize(
    ("format_", "grammar"),
    [
        (None, ""),
        ({"type": "text"}, ""),
        ({"type": "grammar", "syntax": "regex", "definition": "a/b"}, r"start: /a\/b/"),
    ],
)
def test_what_a_custom_tool_takes(format_: object, grammar: str) -> None:
    (tool,) = asked(tools=[{**PATCH, "format": format_}]).tools
    assert tool.grammar == grammar


def test_a_deferred_tool_is_found_by_search() -> None:
    found = {
        "type": "tool_search_output",
        "call_id": "s",
        "execution": "client",
        "tools": [{**GIT, "tools": [{**WEATHER, "name": "blame", "defer_loading": True}]}],
    }
    call = {"type": "tool_search_call", "call_id": "s", "arguments": {"query": "who"}}
    before = asked(tools=[SEARCH, GIT])
    after = asked(tools=[SEARCH, GIT], input=[call, found])
    assert [tool.name for tool in before.tools] == ["tool_search", "git__log"]
    assert [tool.name for tool in after.tools] == ["tool_search", "git__log", "git__blame"]
    assert isinstance(after.prompt, Conversation)
    assert after.prompt.messages == (
        Message("assistant", "", tool_calls=(ToolCall("s", "tool_search", '{"query": "who"}'),)),
        Message("tool", '{"tools": ["git__blame"]}', tool_call_id="s"),
    )


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "weather"}, NamedTool("weather")),
        ({"type": "custom", "name": "patch"}, NamedTool("patch")),
        ({"type": "function", "namespace": "git", "name": "log"}, NamedTool("git__log")),
    ],
    ids=str,
)
def test_tool_choice(choice: object, read: object) -> None:
    request = asked(tools=[WEATHER, PATCH, GIT], tool_choice=choice)
    assert request.tool_choice == read
    assert len(request.tools) == 4


@pytest.mark.parametrize(("mode", "read"), [("auto", "auto"), ("required", "required")])
def test_allowed_tools(mode: str, read: str) -> None:
    allowed = [{"type": "custom", "name": "patch"}, {"type": "web_search"}]
    choice = {"type": "allowed_tools", "mode": mode, "tools": allowed}
    request = asked(tools=[WEATHER, PATCH], tool_choice=choice)
    assert [tool.name for tool in request.tools] == ["patch"]
    assert request.tool_choice == read


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**GIT, "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [{**PATCH, "format": {"type": "x"}}]}, "tools[0].format.type"),
        (
            {"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "lark"}}]},
            "tools[0].format.definition",
        ),
        ({"tools": [{"type": "function", "name": 5}]}, "tools[0].name"),
    ],
    ids=str,
)
def test_tools_that_are_refused_by_name(fields: dict[str, object], param: str) -> None:
    assert refused(**fields).param == param


# --- the rest ---


def test_sampling_and_lengths() -> None:
    request = asked(temperature=0, top_p=0.5, max_output_tokens=7, seed=3, stop="END", model="mine")
    assert request.sampling == SamplingParams(temperature=0.0, top_p=0.5, seed=3)
    assert (request.max_tokens, request.stop, request.model) == (7, ("END",), "mine")


@pytest.mark.parametrize(
    ("format_", "read"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonSchema({})),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            JsonSchema({"type": "object"}, "n"),
        ),
    ],
    ids=str,
)
def test_the_text_format(format_: object, read: object) -> None:
    assert asked(text={"format": format_, "verbosity": "low"}).output_format == read


def test_an_answer_that_must_be_a_call_has_no_text_format() -> None:
    """As ``instructor`` asks."""
    text = {"format": {"type": "json_schema", "name": "n", "schema": {}}}
    choice = {"type": "function", "name": "weather"}
    assert asked(text=text, tools=[WEATHER], tool_choice=choice).output_format is None


@pytest.mark.parametrize(
    ("reasoning", "read"),
    [
        (None, Thinking()),
        ({"summary": "auto"}, Thinking()),
        ({"effort": None}, Thinking()),
        ({"effort": "none"}, Thinking(enabled=False, effort="none")),
        ({"effort": "high"}, Thinking(enabled=True, effort="high")),
    ],
    ids=str,
)
def test_reasoning(reasoning: object, read: object) -> None:
    assert asked(reasoning=reasoning).thinking == read


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"reasoning": {"effort": "low", "max_tokens": 9}}, Thinking(True, "low", 9)),
        ({"reasoning": {"enabled": False, "effort": "high"}}, Thinking(False, "high")),
        ({"thinking_budget": 9}, Thinking(True, None, 9)),
        ({"reasoning": {"effort": "high"}, "thinking_budget": 0}, Thinking(False, "high")),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, Thinking(True, None, 9)),
        ({"reasoning_effort": "minimal"}, Thinking(True, "minimal")),
        ({"chat_template_kwargs": {"enable_thinking": False}}, Thinking(False)),
    ],
    ids=str,
)
def test_thinking_in_the_words_of_other_servers(fields: dict[str, object], read: object) -> None:
    """As in chats."""
    assert asked(**fields).thinking == read


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({}, None),
        ({"include": ["reasoning.encrypted_content"]}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"top_logprobs": 2}, 2),
        ({"top_logprobs": 0}, None),
    ],
    ids=str,
)
def test_log_probabilities(fields: dict[str, object], read: int | None) -> None:
    assert asked(**fields).logprobs == read


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"background": True, "store": False}, "background"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 5}}, "metadata"),
    ],
    ids=str,
)
def test_what_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    assert refused(**fields).param == param


FIELDS = [
    "input",
    "instructions",
    "max_output_tokens",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "include",
    "top_logprobs",
    "store",
    "background",
    "previous_response_id",
    "metadata",
    "user",
    "conversation",
    "prompt",
    "stream",
    "temperature",
    "top_p",
    "model",
    "truncation",
    "service_tier",
    "prompt_cache_key",
    "client_metadata",
]


@pytest.mark.parametrize("field", [name for name in FIELDS if name != "input"])
def test_null_is_absent(field: str) -> None:
    assert asked(**{field: None}) == asked()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["message", "function_call", "function", "custom", "auto", "user", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "role",
                    "content",
                    "text",
                    "name",
                    "call_id",
                    "output",
                    "arguments",
                    "format",
                    "tools",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
def test_any_json_is_a_request_or_refused(fields: dict[str, Any]) -> None:
    try:
        request = parse(**fields)
    except RequestError:
        return
    assert isinstance(request, ParsedRequest)
    json.loads(request.writer.start()[0].data)


# --- what was said before ---


def test_a_request_says_what_it_refers_to() -> None:
    asked_for = continuation(
        previous_response_id="resp_1",
        input=[{"type": "item_reference", "id": "msg_1"}, {"id": "msg_2"}],
        background=True,
    )
    assert asked_for.previous_id == "resp_1"
    assert asked_for.references == ("msg_1", "msg_2")
    assert (asked_for.store, asked_for.background) == (True, True)
    assert asked_for.answer.status == "queued"


def test_a_conversation_goes_on() -> None:
    asked_for = continuation(
        previous_response_id="resp_1",
        input=[{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "And?"}],
        instructions="Be kind",
    )
    history: list[dict[str, object]] = [
        {"role": "user", "content": "Hi"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Ho"}],
        },
    ]
    resumed = asked_for.resume(history, {"msg_1": {"role": "user", "content": "Well"}})
    assert isinstance(resumed.generation.prompt, Conversation)
    assert resumed.generation.prompt.messages == (
        Message("system", "Be kind"),
        USER,
        Message("assistant", "Ho"),
        Message("user", "Well"),
        Message("user", "And?"),
    )
    assert resumed.continuation is not None
    assert resumed.continuation.answer.id == asked_for.answer.id
    assert [item["content"] for item in resumed.continuation.items] == [
        [{"type": "input_text", "text": "Well"}],
        [{"type": "input_text", "text": "And?"}],
    ]


def test_input_items_are_kept_whole() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "id": "fc_x"}
    (said, called) = continuation(input=[{"role": "user", "content": "Hi"}, call]).items
    assert said == {
        "type": "message",
        "role": "user",
        "status": "completed",
        "id": "msg_1",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    assert called == {**call, "status": "completed"}
