"""The tools of a Responses request: what the model may call, and what a call is named on the wire.

Namespaces (``{"type": "namespace", "name": "git", "tools": [...]}``) are flattened to names the
model can use and split again on the way out. ``tool_search`` becomes an ordinary tool if the
client executes it. Tools of other types (``web_search`` and its kind) would be executed by
OpenAI's servers; agents list them always, so they are left out, not refused.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from ds4trio.protocols.fields import convert, invalid, required, unsupported
from ds4trio.protocols.tools import lark_grammar, named_tool, some_tool
from ds4trio.request import NamedTool, ToolChoice, ToolSpec

#: A JSON object that was read without looking into it.
Json = Mapping[str, object]
CallKind = Literal["function", "custom", "tool_search"]

TOOL_SEARCH = "tool_search"


class GrammarFormat(msgspec.Struct):
    type: str | None = None
    syntax: str | None = None
    definition: str | None = None


class Tool(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    execution: str | None = None
    tools: list[dict[str, Any]] | None = None
    format: GrammarFormat | None = None


class AllowedTool(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    namespace: str | None = None


class ChoiceObject(AllowedTool):
    mode: str | None = None
    tools: list[AllowedTool] | None = None


@dataclass(frozen=True, slots=True)
class CallName:
    """How a call of one tool is written on the wire."""

    kind: CallKind
    name: str
    namespace: str | None = None


def flat_name(namespace: str | None, name: str) -> str:
    """The one name by which the model knows a tool of a namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


@dataclass(slots=True)
class ToolTable:
    """``specs`` are what the model is told of, in order; ``names`` has an entry for each."""

    specs: dict[str, ToolSpec] = field(default_factory=dict)
    names: dict[str, CallName] = field(default_factory=dict)

    @property
    def offered(self) -> tuple[ToolSpec, ...]:
        return tuple(self.specs.values())

    def call_name(self, flat: str) -> CallName:
        """Also for a tool that was never declared: a model may call what it likes."""
        return self.names.get(flat) or CallName("function", flat)

    def declare(self, tools: Sequence[Json], at: str, *, loaded: bool = False) -> None:
        """Tools of a request; ``loaded`` ones were searched for, and so are deferred no more.

        Raises: RequestError.
        """
        read = [convert(tool, Tool, f"{at}[{i}]") for i, tool in enumerate(tools)]
        # Without a search that the client executes, a deferred tool would never be found.
        defers = not loaded and any(_is_client_search(tool) for tool in read)
        for i, tool in enumerate(read):
            if not (defers and tool.defer_loading):
                self._declare(tool, f"{at}[{i}]", None, defers=defers)

    def _declare(self, tool: Tool, at: str, namespace: str | None, *, defers: bool) -> None:
        match tool.type:
            case "function":
                spec = ToolSpec(
                    flat_name(namespace, required(tool.name, f"{at}.name")),
                    tool.description or "",
                    tool.parameters or {},
                    strict=bool(tool.strict),
                    param=f"{at}.parameters",
                )
                self._add(spec, CallName("function", tool.name or "", namespace))
            case "custom":
                name = flat_name(namespace, required(tool.name, f"{at}.name"))
                grammar = _grammar(tool.format, f"{at}.format")
                place = f"{at}.format.definition"
                spec = ToolSpec(name, tool.description or "", grammar=grammar, param=place)
                self._add(spec, CallName("custom", tool.name or "", namespace))
            case "namespace" if namespace is None:
                inner = required(tool.name, f"{at}.name")
                for i, member in enumerate(tool.tools or []):
                    place = f"{at}.tools[{i}]"
                    read = convert(member, Tool, place)
                    if not (defers and read.defer_loading):
                        self._declare(read, place, inner, defers=defers)
            case "tool_search" if _is_client_search(tool):
                spec = ToolSpec(
                    TOOL_SEARCH,
                    tool.description or "",
                    tool.parameters or {},
                    param=f"{at}.parameters",
                )
                self._add(spec, CallName("tool_search", TOOL_SEARCH))
            case None:
                raise invalid(f"{at}.type", "required, but missing or null")
            case _:
                pass

    def _add(self, spec: ToolSpec, name: CallName) -> None:
        self.specs[spec.name] = spec
        self.names[spec.name] = name

    def keep(self, allowed: Iterable[str]) -> None:
        """Offer only these."""
        names = set(allowed)
        self.specs = {name: spec for name, spec in self.specs.items() if name in names}


def read_tool_choice(choice: object, table: ToolTable) -> ToolChoice:
    """What must be called; ``allowed_tools`` also narrows the table.

    Raises: RequestError if it names a tool that is not there.
    """
    if choice is None or choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    if choice == "required":
        some_tool(table.offered, "tool_choice")
        return "required"
    if isinstance(choice, str):
        raise invalid("tool_choice", f"{choice!r} is not one of none, auto, required")
    asked = convert(choice, ChoiceObject, "tool_choice")
    if asked.type != "allowed_tools":
        return _named(asked, table, "tool_choice")
    table.keep(
        _named(tool, table, f"tool_choice.tools[{i}]").name
        for i, tool in enumerate(asked.tools or [])
        if tool.type in _CALLABLE
    )
    if asked.mode != "required":
        return "auto"
    some_tool(table.offered, "tool_choice.tools")
    return "required"


_CALLABLE = (None, "function", "custom", "tool_search")


def _named(tool: AllowedTool, table: ToolTable, at: str) -> NamedTool:
    if tool.type not in _CALLABLE:
        raise unsupported(f"{at}.type", f"{tool.type!r} tools are not supported by this server")
    name = TOOL_SEARCH if tool.type == "tool_search" else required(tool.name, f"{at}.name")
    return named_tool(flat_name(tool.namespace, name), table.offered, f"{at}.name")


def _is_client_search(tool: Tool) -> bool:
    return tool.type == "tool_search" and tool.execution == "client"


def _grammar(wanted: GrammarFormat | None, at: str) -> str:
    if wanted is None or wanted.type in (None, "text"):
        return ""
    if wanted.type != "grammar":
        raise invalid(f"{at}.type", f"{wanted.type!r} is not one of text, grammar")
    definition = required(wanted.definition, f"{at}.definition")
    return lark_grammar(wanted.syntax, definition, f"{at}.syntax")


def echoed(tools: Sequence[Json]) -> list[Json]:
    """Tools as a response repeats them: what its types require of a function is there."""
    return [
        {"parameters": None, "strict": None, "description": None, **tool}
        if tool.get("type") == "function"
        else tool
        for tool in tools
    ]
