"""Tools of a chat, and which of them may or must be called.

Source: OpenAI's API reference. Tools of a type that is not known are skipped: they are offers, and
a model that does not hear of one cannot take it.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from typing import Literal

import msgspec

from ds4trio.protocols.fields import invalid, required, unsupported
from ds4trio.protocols.openai_thinking import ThinkingFields
from ds4trio.protocols.tools import lark_grammar, named_tool, some_tool
from ds4trio.request import ToolChoice, ToolSpec


class FunctionTool(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class Grammar(msgspec.Struct):
    syntax: str | None = None
    definition: str | None = None


class InputFormat(msgspec.Struct):
    type: str | None = None
    grammar: Grammar | None = None


class CustomTool(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    format: InputFormat | None = None


class Tool(msgspec.Struct):
    type: str | None = None
    function: FunctionTool | None = None
    custom: CustomTool | None = None


class AllowedTools(msgspec.Struct):
    mode: Literal["auto", "required"] | None = None
    tools: list[Tool] | None = None


class ChosenTool(msgspec.Struct):
    type: str | None = None
    function: FunctionTool | None = None
    custom: CustomTool | None = None
    allowed_tools: AllowedTools | None = None


class ToolFields(ThinkingFields, kw_only=True):
    tools: list[Tool] | None = None
    tool_choice: str | ChosenTool | None = None
    parallel_tool_calls: bool | None = None

    #: Of before tools; declared to be refused by name.
    functions: list[object] | None = None
    function_call: object = None


def tools(fields: ToolFields) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """Raises: RequestError."""
    if fields.functions and fields.function_call != "none":
        raise unsupported("functions", "not supported by this server; use tools instead")
    if fields.function_call not in (None, "none", "auto"):
        raise unsupported("function_call", "not supported by this server; use tool_choice instead")
    offered = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(fields.tools or ())]
    known = tuple([tool for tool in offered if tool is not None])
    chosen = fields.tool_choice
    if isinstance(chosen, ChosenTool):
        return _chosen(chosen, known)
    match chosen:
        case None | "auto":
            return known, "auto"
        case "none":
            return known, "none"
        case "required":
            some_tool(known, "tool_choice")
            return known, "required"
        case _:
            raise invalid("tool_choice", "not one of none, auto, required")


def _chosen(
    chosen: ChosenTool, known: tuple[ToolSpec, ...]
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    if chosen.type == "allowed_tools":
        allowed = required(chosen.allowed_tools, "tool_choice.allowed_tools")
        at = "tool_choice.allowed_tools.tools"
        names = {_name_of(tool, f"{at}[{i}]") for i, tool in enumerate(allowed.tools or ())}
        known = tuple([tool for tool in known if tool.name in names])
        if allowed.mode == "required":
            some_tool(known, at)
        return known, allowed.mode or "auto"
    if chosen.type not in ("function", "custom"):
        raise invalid("tool_choice.type", "not one of function, custom, allowed_tools")
    name = _name_of(chosen, "tool_choice")
    return known, named_tool(name, known, f"tool_choice.{chosen.type}.name")


def _name_of(tool: Tool | ChosenTool, at: str) -> str:
    if tool.type == "custom":
        custom = required(tool.custom, f"{at}.custom")
        return required(custom.name, f"{at}.custom.name")
    function = required(tool.function, f"{at}.function")
    return required(function.name, f"{at}.function.name")


def _tool(tool: Tool, at: str) -> ToolSpec | None:
    match tool.type:
        case None | "function":
            return _function(required(tool.function, f"{at}.function"), f"{at}.function")
        case "custom":
            return _custom(required(tool.custom, f"{at}.custom"), f"{at}.custom")
        case _:
            return None


def _function(function: FunctionTool, at: str) -> ToolSpec:
    return ToolSpec(
        name=_nonempty(function.name, f"{at}.name"),
        description=function.description or "",
        parameters=function.parameters or {},
        strict=bool(function.strict),
        param=f"{at}.parameters",
    )


def _custom(custom: CustomTool, at: str) -> ToolSpec:
    return ToolSpec(
        name=_nonempty(custom.name, f"{at}.name"),
        description=custom.description or "",
        grammar=_grammar(custom.format, f"{at}.format"),
        param=f"{at}.format.grammar.definition",
    )


def _grammar(format_: InputFormat | None, at: str) -> str:
    match format_:
        case None | InputFormat(type=None | "text"):
            return ""
        case InputFormat(type="grammar", grammar=grammar):
            grammar = required(grammar, f"{at}.grammar")
            definition = required(grammar.definition, f"{at}.grammar.definition")
            return lark_grammar(grammar.syntax, definition, f"{at}.grammar.syntax")
    raise invalid(f"{at}.type", "not one of text, grammar")


def _nonempty(name: str | None, at: str) -> str:
    if not required(name, at):
        raise invalid(at, "an empty name")
    assert name is not None
    return name
