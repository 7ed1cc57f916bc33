"""Tools and the choice among them: what all protocols check alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.protocols.fields import invalid
from ds4trio.request import NamedTool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.request import ToolSpec


def lark_grammar(syntax: str | None, definition: str, param: str) -> str:
    """The grammar of a custom tool's input (OpenAI's ``lark`` or ``regex``), in Lark.

    ``param`` names the field that holds the syntax. Raises: RequestError.
    """
    match syntax:
        case "lark":
            return definition
        case "regex":
            return f"start: /{_between_slashes(definition)}/"
        case _:
            raise invalid(param, "not one of lark, regex")


def named_tool(name: str, tools: Sequence[ToolSpec], param: str) -> NamedTool:
    """Raises: RequestError if there is no such tool."""
    if all(tool.name != name for tool in tools):
        raise invalid(param, f"there is no tool {name!r} in tools")
    return NamedTool(name)


def some_tool(tools: Sequence[ToolSpec], param: str) -> None:
    """Raises: RequestError where a call is demanded, but nothing can be called."""
    if not tools:
        raise invalid(param, "a tool call is required, but tools has none that this server knows")


def _between_slashes(pattern: str) -> str:
    """The pattern, with every slash escaped that is not so already."""
    out: list[str] = []
    escaped = False
    for character in pattern:
        if character == "/" and not escaped:
            out.append("\\")
        escaped = character == "\\" and not escaped
        out.append(character)
    return "".join(out)
