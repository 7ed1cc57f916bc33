"""Every kind of thing within the official clients' request types, and every field of those that are
read: one that a later client brings makes these tests fail with its name. As `test_sdk_fields`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import anthropic.types as a
import anthropic.types.beta as b
import msgspec
import openai.types.chat as c
import openai.types.responses as r
import pytest
from openai.types.responses.response_input_param import ResponseInputItemParam
from sdk_endpoints import (
    CHAT,
    FLAT_FUNCTION,
    FUNCTION,
    HELLO,
    MESSAGES,
    RESPONSES,
    TOOL,
    TOOLS,
    Endpoint,
    Fields,
)
from sdk_types import kinds_of, names_within

from ds4trio.errors import RequestError
from ds4trio.protocols.table import PROTOCOLS


@dataclass(frozen=True, slots=True)
class Union:
    """Things told apart by their ``type``. ``at`` makes a request of one, and ``read`` has a whole
    one of each kind that is read."""

    name: str
    types: tuple[Any, ...]
    endpoint: Endpoint
    at: Any
    read: dict[str, Fields]
    left_out: set[str]
    refused: set[str] = field(default_factory=set)

    @property
    def kinds(self) -> list[str]:
        return [*self.read, *sorted(self.left_out), *sorted(self.refused)]


CALLED = {"call_id": "1", "id": "i"}
IN_NAMESPACE = {"tools": [FLAT_FUNCTION], "name": "n"}
RESULT: Fields = {"tool_use_id": "1", "content": "r"}
UNIONS = [
    Union(
        "parts of a chat's message",
        (c.ChatCompletionContentPartParam, c.ChatCompletionContentPartRefusalParam),
        CHAT,
        lambda part: {"messages": [{"role": "user", "content": [part]}]},
        read={"text": {"text": "Ho"}, "refusal": {"refusal": "Ho"}},
        left_out=set(),
        refused={"image_url", "input_audio", "file"},
    ),
    Union(
        "tools of a chat",
        (c.ChatCompletionToolUnionParam,),
        CHAT,
        lambda tool: {"tools": [tool]},
        read={"function": FUNCTION, "custom": {"custom": {"name": "c"}}},
        left_out=set(),
    ),
    Union(
        "items of a response's input",
        (ResponseInputItemParam,),
        RESPONSES,
        lambda item: {"input": [*HELLO, item]},
        read={
            "message": {"role": "user", "content": "Ho"},
            "reasoning": {"content": [{"type": "reasoning_text", "text": "Hm"}]},
            "function_call": {**CALLED, "name": "f", "arguments": "{}"},
            "function_call_output": {**CALLED, "output": "o"},
            "custom_tool_call": {**CALLED, "name": "f", "input": "i"},
            "custom_tool_call_output": {**CALLED, "output": "o"},
            "local_shell_call": {**CALLED, "action": {}},
            "local_shell_call_output": {"id": "1", "output": "o"},
            "shell_call": {**CALLED, "action": {}},
            "shell_call_output": {**CALLED, "output": []},
            "apply_patch_call": {**CALLED, "operation": {}},
            "apply_patch_call_output": {**CALLED, "output": "o"},
            "tool_search_call": {**CALLED, "arguments": {}},
            "tool_search_output": {**CALLED, "tools": [FLAT_FUNCTION]},
            "additional_tools": {"tools": [FLAT_FUNCTION]},
            "item_reference": {"id": "msg_1"},
        },
        # Calls that OpenAI's server executes, and its marks.
        left_out={
            *("code_interpreter_call", "file_search_call", "image_generation_call"),
            *("web_search_call", "computer_call", "computer_call_output", "program"),
            *("program_output", "mcp_call", "mcp_list_tools", "mcp_approval_request"),
            *("mcp_approval_response", "compaction", "compaction_trigger"),
            "configuration_update",
        },
    ),
    Union(
        "parts of a response's message",
        (
            r.ResponseInputContentParam,
            r.ResponseOutputTextParam,
            r.ResponseOutputRefusalParam,
        ),
        RESPONSES,
        lambda part: {"input": [{"role": "user", "content": [part]}]},
        read={
            "input_text": {"text": "Ho"},
            "output_text": {"text": "Ho"},
            "refusal": {"refusal": "Ho"},
        },
        left_out=set(),
        refused={"input_image", "input_file"},
    ),
    Union(
        "tools of a response",
        (r.ToolParam,),
        RESPONSES,
        lambda tool: {"tools": [tool]},
        read={
            "function": FLAT_FUNCTION,
            "custom": {"name": "c"},
            "namespace": IN_NAMESPACE,
            "tool_search": {"execution": "client"},
        },
        # What OpenAI's server executes, or its models know by heart.
        left_out={
            *("apply_patch", "code_interpreter", "computer", "computer_use_preview", "file_search"),
            *("image_generation", "local_shell", "mcp", "programmatic_tool_calling", "shell"),
            *("web_search", "web_search_2025_08_26", "web_search_preview"),
            "web_search_preview_2025_03_11",
        },
    ),
    Union(
        "blocks of a user's message",
        (
            *(a.TextBlockParam, a.ImageBlockParam, a.DocumentBlockParam, a.SearchResultBlockParam),
            *(a.ToolResultBlockParam, a.ToolReferenceBlockParam, a.ContainerUploadBlockParam),
            *(b.BetaRequestToolAdditionBlockParam, b.BetaRequestToolRemovalBlockParam),
            *(a.BrowserStateBlockParam, b.BetaMCPToolListingBlockParam),
        ),
        MESSAGES,
        lambda block: {"messages": [*HELLO, {"role": "user", "content": [block]}]},
        read={
            "text": {"text": "Ho"},
            "document": {"source": {"type": "text", "data": "Ho"}},
            "search_result": {"title": "t", "content": [{"type": "text", "text": "Ho"}]},
            "tool_result": RESULT,
            "tool_reference": {"tool_name": "f"},
            "tool_addition": {"tool": {"type": "tool_reference", "name": "f"}},
            "tool_removal": {"tool": {"type": "tool_reference", "name": "f"}},
        },
        left_out=set(),
        refused={"image", "container_upload", "browser_state", "mcp_tool_listing"},
    ),
    Union(
        "blocks of an assistant's message",
        (a.ContentBlockParam, b.BetaContentBlockParam),
        MESSAGES,
        lambda block: {
            "messages": [
                *HELLO,
                {"role": "assistant", "content": [{"type": "text", "text": "!"}, block]},
            ]
        },
        read={
            "text": {"text": "Ho"},
            "thinking": {"thinking": "Hm", "signature": ""},
            "tool_use": {"id": "1", "name": "f", "input": {}},
            "compaction": {"content": "What was said"},
        },
        # What another server or model wrote for itself, and what belongs to users.
        left_out={
            *("redacted_thinking", "server_tool_use", "web_search_tool_result", "mcp_tool_use"),
            *("web_fetch_tool_result", "code_execution_tool_result", "mcp_tool_result", "fallback"),
            *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result"),
            *("tool_search_tool_result", "advisor_tool_result", "mcp_tool_listing"),
            *("container_upload", "document", "image", "search_result", "tool_result"),
            *("tool_addition", "tool_removal"),
        },
    ),
    Union(
        "tools of a message",
        (a.ToolUnionParam, b.BetaToolUnionParam),
        MESSAGES,
        lambda tool: {"tools": [{"name": "t", **tool}]},
        read={"custom": TOOL},
        # What Anthropic's server executes, or its models know by heart.
        left_out={
            *("advisor_20260301", "bash_20241022", "bash_20250124", "browser_toolset_20260801"),
            *("code_execution_20250522", "code_execution_20250825", "code_execution_20260120"),
            *("code_execution_20260521", "computer_20241022", "computer_20250124"),
            *("computer_20251124", "computer_toolset_20260801", "mcp_toolset", "memory_20250818"),
            *("text_editor_20241022", "text_editor_20250124", "text_editor_20250429"),
            *("text_editor_20250728", "tool_search_tool_bm25", "tool_search_tool_bm25_20251119"),
            *("tool_search_tool_regex", "tool_search_tool_regex_20251119", "web_fetch_20250910"),
            *("web_fetch_20260209", "web_fetch_20260309", "web_fetch_20260318"),
            *("web_search_20250305", "web_search_20260209", "web_search_20260318"),
        },
    ),
    Union(
        "ways of thinking",
        (a.ThinkingConfigParam, b.BetaThinkingConfigParam),
        MESSAGES,
        lambda thinking: {"thinking": thinking},
        read={"enabled": {"budget_tokens": 2000}, "disabled": {}},
        left_out={"adaptive", "between_tools"},  # to the model
    ),
    Union(
        "choices of a tool",
        (a.ToolChoiceParam, b.BetaToolChoiceParam),
        MESSAGES,
        lambda choice: {**TOOLS, "tool_choice": choice},
        read={"any": {}, "tool": {"name": "f"}, "none": {}},
        left_out={"auto"},
    ),
]
each_union = pytest.mark.parametrize("union", UNIONS, ids=lambda union: union.name)


@each_union
def test_every_kind_is_in_one_list(union: Union) -> None:
    assert sorted(union.kinds) == sorted(kinds_of(*union.types))


@each_union
def test_a_kind_that_is_read_has_an_effect_and_others_have_none(union: Union) -> None:
    def effect(thing: Fields) -> object:
        parsed = union.endpoint.parse(union.at(thing))
        return parsed.generation, parsed.continuation and parsed.continuation.references

    nothing = effect({"type": sorted(union.left_out)[0]}) if union.left_out else None
    for kind, whole in union.read.items():
        assert effect({**whole, "type": kind}) != nothing, kind
    for kind in union.left_out:
        assert effect({"type": kind}) == nothing, kind
    for kind in union.refused:
        with pytest.raises(RequestError, match=kind) as caught:
            union.endpoint.parse(union.at({"type": kind}))
        assert caught.value.code == "unsupported_parameter", kind


#: By endpoint: fields within what is read that have no effect.
IGNORED_WITHIN: dict[str, set[str]] = {
    "/v1/chat/completions": {"include_obfuscation", "prompt_cache_breakpoint"},
    "/v1/responses": {
        *("include_obfuscation", "prompt_cache_breakpoint", "encrypted_content"),
        # What a server says of its own answers.
        *("annotations", "logprobs", "phase", "status"),
        # Who may call what, and where it runs: the client's matter.
        *("allowed_callers", "async", "caller", "environment", "max_output_length"),
        *("context", "output_schema"),
    },
    "/v1/messages": {
        # What a server says of its own answers.
        *("citations", "encrypted_content", "signature", "tool_changes"),
        # How answers are shown, and when what was said is forgotten.
        *("block_binding", "clear_at", "display", "eager_input_streaming", "task_budget"),
        # Who may call what, and where it runs.
        *("allowed_callers", "caller", "server_name", "toolset_name"),
        # Of documents that are no text, which are refused.
        *("file_id", "media_type", "url"),
        "input_examples",
    },
}
#: Within what is handed to the model as it is.
GIVEN = {"outcome", "stderr", "stdout"}
#: Handed to the model as they are, whatever they hold.
WHOLE = {"action", "operation", "parameters", "input_schema", "schema", "arguments"}


def declared(path: str) -> set[str]:
    """The names of all fields that an endpoint's requests are read for, in whatever module."""
    waiting = [type(PROTOCOLS[path]).__module__]
    seen: set[str] = set()
    names: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or not module.startswith("ds4trio.protocols."):
            continue
        seen.add(module)
        for thing in vars(sys.modules[module]).values():
            waiting.append(getattr(thing, "__module__", None) or "")
            if isinstance(thing, type) and issubclass(thing, msgspec.Struct):
                names |= set(thing.__struct_encode_fields__)
    return names


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, MESSAGES], ids=lambda e: e.path[4:])
def test_every_field_within_is_read_or_ignored(endpoint: Endpoint) -> None:
    unions = [union for union in UNIONS if union.endpoint is endpoint]
    read = {kind for union in unions for kind in union.read}
    others = {kind for union in unions for kind in union.left_out | union.refused} - read
    read_names = declared(endpoint.path)
    names = names_within(endpoint.types, read_names - WHOLE - endpoint.refused.keys(), others)
    unread = names - read_names - endpoint.ignored.keys() - GIVEN
    assert sorted(unread) == sorted(IGNORED_WITHIN[endpoint.path])
