"""Tools of a Messages request, and which of them may or must be called.

A tool with ``defer_loading`` stays out of the list of tools: the model hears of it where a
``tool_reference`` in a tool's result names it. So what stands before it in the prompt stays as it
was, and so does what a server has computed of it.

Source: Anthropic's API reference ("Tool use", "Tool search tool").
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from collections.abc import Mapping, Sequence

import msgspec

from ds4trio.protocols.fields import invalid, required, to_text
from ds4trio.protocols.tools import named_tool, some_tool
from ds4trio.request import ToolChoice, ToolSpec


class AnthropicTool(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, object] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ChangedTool(msgspec.Struct):
    """In the middle of a conversation: a tool by its name, or in full."""

    type: str | None = None
    name: str | None = None
    definition: AnthropicTool | None = None


class ToolChoiceFields(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def known_tools(sent: Sequence[AnthropicTool] | None) -> dict[str, AnthropicTool]:
    """By name, without those that only Anthropic's server or models know: they are offers, and a
    model that does not hear of one cannot take it. Raises: RequestError."""
    known: dict[str, AnthropicTool] = {}
    for i, tool in enumerate(sent or ()):
        if tool.type in (None, "custom"):
            name = required(tool.name, f"tools[{i}].name")
            if not name:
                raise invalid(f"tools[{i}].name", "an empty name")
            known[name] = tool
    return known


def tools(
    sent: Sequence[AnthropicTool] | None,
    known: Mapping[str, AnthropicTool],
    choice: ToolChoiceFields | None,
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """The tools to list, and the choice among them. Raises: RequestError."""
    at = {tool.name: f"tools[{i}]" for i, tool in enumerate(sent or ()) if tool in known.values()}
    must = choice.name if choice is not None and choice.type == "tool" else None
    listed = tuple(
        [
            spec(name, tool, at[name])
            for name, tool in known.items()
            if not tool.defer_loading or name == must
        ]
    )
    if choice is None:
        return listed, "auto"
    match required(choice.type, "tool_choice.type"):
        case "auto":
            return listed, "auto"
        case "none":
            return listed, "none"
        case "any":
            some_tool(listed, "tool_choice")
            return listed, "required"
        case "tool":
            name = required(choice.name, "tool_choice.name")
            return listed, named_tool(name, listed, "tool_choice.name")
        case _:
            raise invalid("tool_choice.type", "not one of auto, any, tool, none")


def spec(name: str, tool: AnthropicTool, at: str) -> ToolSpec:
    return ToolSpec(
        name,
        tool.description or "",
        tool.input_schema or {},
        strict=bool(tool.strict),
        param=f"{at}.input_schema",
    )


def definition(tool: AnthropicTool) -> str:
    """A tool as the model can read it within a conversation."""
    fields = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.input_schema or {},
    }
    return f"<function>{to_text(fields, 'tools')}</function>"
