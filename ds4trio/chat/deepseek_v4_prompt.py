"""Conversations as DeepSeek's own ``deepseek-recipe`` takes them.

Source: the package's type stubs, and what it makes of the same requests in OpenAI's words.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Literal

import deepseek_recipe as recipe

from ds4trio.chat.call_reader import INPUT_KEY
from ds4trio.chat.messages import tool_parameters
from ds4trio.errors import LoadError, RequestError
from ds4trio.request import Conversation, JsonSchema, Regex

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.request import Effort, GenerationRequest, Message, Thinking, ToolCall, ToolSpec


class PromptContract(Enum):
    """What a checkpoint was trained to see for "think harder"."""

    #: April 2026: ``max`` has a paragraph ("Absolute maximum"), all else none.
    PREVIEW = "preview"
    #: July 31st 2026 and later: ``low`` has none, ``high`` what was ``max``'s, ``max`` a stronger.
    TIERED = "0731"


def prompt_contract(folder: Path) -> PromptContract:
    """What the encoder that comes with a checkpoint says; without one, the later contract.

    The file is read as text and never run. Raises: LoadError naming it.
    """
    file = folder / "encoding" / "encoding_dsv4.py"
    if not file.exists():
        return PromptContract.TIERED
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{file}: {error}") from None
    if "REASONING_EFFORT_PROMPTS" in source:
        return PromptContract.TIERED
    if "REASONING_EFFORT_MAX" in source:
        return PromptContract.PREVIEW
    raise LoadError(f"{file}: says nothing of the effort of thinking; set the prompt contract")


def thinks(thinking: Thinking) -> bool:
    """Whether the model is to think: it does, unless told not to."""
    return thinking.enabled is not False and thinking.effort != "none"


def is_forced(request: GenerationRequest) -> bool:
    """Whether the answer has to be a tool call."""
    return request.tool_choice not in ("auto", "none")


def opens_calls(request: GenerationRequest) -> bool:
    """Whether the prompt begins the tool calls. A model that thinks has to come to them itself."""
    return is_forced(request) and not thinks(request.thinking)


def offered_tools(request: GenerationRequest) -> tuple[ToolSpec, ...]:
    """The tools that the model may call."""
    return () if request.tool_choice == "none" else request.tools


def recipe_conversation(
    request: GenerationRequest, contract: PromptContract
) -> recipe.Conversation:
    """Raises: RequestError for what has no prompt."""
    assert isinstance(request.prompt, Conversation)  # raw prompts have no chat format
    form = request.output_format
    wants_object = isinstance(form, JsonSchema) and not form.schema
    try:
        return recipe.Conversation(
            [_message(message, request) for message in request.prompt.messages],
            thinking_mode=thinks(request.thinking),
            tools=[_tool(tool) for tool in offered_tools(request)],
            tool_choice="required" if opens_calls(request) else "auto",
            reasoning_effort=_effort(request.thinking.effort, contract),
            response_format="json_object" if wants_object else "text",
            response_schema=(dict(form.schema) or None) if isinstance(form, JsonSchema) else None,
            response_regex=form.pattern if isinstance(form, Regex) else None,
        )
    except (ValueError, TypeError) as error:
        # Half a surrogate pair, a number beyond all ranges.
        raise RequestError(f"not to be written for this model: {error}", param="messages") from None


def _message(message: Message, request: GenerationRequest) -> recipe.Message:
    match message.role:
        case "system":
            return recipe.SystemMessage(message.content)
        case "user" | "developer":
            return recipe.UserMessage(message.content)
        case "latest_reminder":
            return recipe.LatestReminderMessage(message.content)
        case "tool":
            return recipe.ToolMessage(message.content, message.tool_call_id)
        case "assistant":
            custom = {tool.name for tool in request.tools if tool.grammar is not None}
            calls = [_call(call, custom) for call in message.tool_calls]
            # Clients lose it. A model that thinks is then shown that it had no thoughts.
            reasoning = (message.reasoning or "") if thinks(request.thinking) else None
            return recipe.AssistantMessage(message.content, reasoning, calls or None)


def _call(call: ToolCall, custom: set[str]) -> recipe.ToolCall:
    arguments = call.arguments
    if call.name in custom:
        arguments = json.dumps({INPUT_KEY: arguments}, ensure_ascii=False)
    return recipe.ToolCall(call.id, call.name, arguments)


def _tool(tool: ToolSpec) -> recipe.ToolDefinition:
    if tool.grammar is None:
        return recipe.ToolDefinition(tool.name, tool.description, dict(tool.parameters))
    description = tool.description
    if tool.grammar:
        description += f"\n\nThe input must match this Lark grammar:\n{tool.grammar}"
    return recipe.ToolDefinition(tool.name, description, dict(tool_parameters(tool)))


def _effort(effort: Effort | None, contract: PromptContract) -> Literal["low", "high", "max"]:
    """Named by the later contract, which is the recipe's.

    Unless told, the model thinks with ``high``: as the recipe does, and so DeepSeek's own service.
    (In the preview contract that has no paragraph; in the later one, ``low`` alone has none.)
    """
    if contract is PromptContract.PREVIEW:
        return "high" if effort == "max" else "low"
    match effort:
        case "none" | "minimal" | "low":
            return "low"
        case None | "medium" | "high" | "xhigh":
            return "high"
        case "max":
            return "max"
