"""Which tools a request leaves no choice but to call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.errors import RequestError
from ds4trio.request import NamedTool

if TYPE_CHECKING:
    from ds4trio.request import GenerationRequest, ToolSpec


def forced_tools(request: GenerationRequest) -> tuple[ToolSpec, ...] | None:
    """The tools of which one has to be called; None where the model may call none.

    Raises: RequestError, if there is none to call.
    """
    match request.tool_choice:
        case NamedTool(name):
            tools = tuple(tool for tool in request.tools if tool.name == name)
            if not tools:
                raise RequestError(f"there is no tool {name!r}", param="tool_choice")
            return tools
        case "required":
            if not request.tools:
                raise RequestError("there are no tools to choose from", param="tools")
            return request.tools
        case "auto" | "none":
            return None
