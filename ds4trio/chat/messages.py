"""A conversation and its tools as chat templates expect them, in transformers' conventions."""

from __future__ import annotations

import hashlib
import json
import string
from dataclasses import replace
from typing import TYPE_CHECKING

from ds4trio.chat.call_reader import INPUT_KEY
from ds4trio.request import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ds4trio.request import ToolCall, ToolSpec

    #: A message's or a tool's fields.
    Fields = dict[str, object]
    #: Makes a user's text safe.
    Hide = Callable[[str], str]

#: Words of JSON Schema. Templates look for them, and no control token is spelled like one.
_SCHEMA_WORDS = frozenset(
    (
        *("type", "properties", "required", "items", "description", "title", "enum", "const"),
        *("default", "format", "anyOf", "oneOf", "allOf", "not", "additionalProperties", "minimum"),
        *(
            "maximum",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "pattern",
            "nullable",
            "object",
        ),
        *("array", "string", "number", "integer", "boolean", "null", "$ref", "$defs"),
        *("definitions", "return"),
    )
)
SYSTEM_ROLES = ("system", "developer")
_ID_ALPHABET = string.digits + string.ascii_letters


def tool_fields(tool: ToolSpec, hide: Hide) -> Fields:
    """A tool's definition. A custom tool is a function of its input."""
    parameters = tool_parameters(tool)
    description = tool.description
    if tool.grammar:
        description += f"\n\nThe input must match this Lark grammar:\n{tool.grammar}"
    function = {
        "name": hide(tool.name),
        "description": hide(description),
        "parameters": _hidden(parameters, hide, known=_SCHEMA_WORDS),
    }
    return {"type": "function", "function": function}


def tool_parameters(tool: ToolSpec) -> Mapping[str, object]:
    """A JSON schema, of an object, for a tool's arguments."""
    if tool.grammar is not None:
        return {
            "type": "object",
            "properties": {INPUT_KEY: {"type": "string"}},
            "required": [INPUT_KEY],
            "additionalProperties": False,
        }
    parameters = dict(tool.parameters)
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return parameters


def message_fields(
    message: Message, hide: Hide, *, knows_developer: bool, call_id_chars: int | None
) -> Fields:
    """One message. ``call_id_chars``: how long the template wants ids of calls to be."""

    def call_id(text: str) -> str:
        return hide(text if call_id_chars is None else short_id(text, call_id_chars))

    role = message.role
    if role == "developer" and not knows_developer:
        role = "system"
    fields: Fields = {"role": role, "content": hide(message.content)}
    if message.name is not None:
        fields["name"] = hide(message.name)
    if message.reasoning is not None:
        # The one name is what templates read, the other what some clients send.
        fields["reasoning_content"] = fields["reasoning"] = hide(message.reasoning)
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call_id(call.id),
                "type": "function",
                "function": {
                    "name": hide(call.name),
                    "arguments": _hidden(call_arguments(call), hide),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = call_id(message.tool_call_id)
    return fields


def call_arguments(call: ToolCall) -> object:
    """The arguments' JSON object. What is none is a custom tool's input, or was cut off."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {INPUT_KEY: call.arguments}


def short_id(text: str, chars: int) -> str:
    """An id of so many letters and digits: itself if it is one, else the same for the same text."""
    if len(text) == chars and text.isascii() and text.isalnum():
        return text
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest())
    return "".join(_ID_ALPHABET[number // 62**place % 62] for place in range(chars))


def with_results_in_order(messages: Iterable[Message]) -> list[Message]:
    """Results after a turn with calls stand in the order of the calls, with the tools' names."""
    ordered: list[Message] = []
    results: list[Message] = []
    calls: Sequence[ToolCall] = ()
    for message in messages:
        if message.role == "tool":
            results.append(message)
            continue
        ordered += _in_call_order(results, calls)
        ordered.append(message)
        results, calls = [], message.tool_calls
    return ordered + _in_call_order(results, calls)


def _in_call_order(results: Iterable[Message], calls: Sequence[ToolCall]) -> list[Message]:
    place = {call.id: index for index, call in enumerate(calls)}
    names = {call.id: call.name for call in calls}
    named = [replace(m, name=m.name or names.get(m.tool_call_id or "")) for m in results]
    return sorted(named, key=lambda m: place.get(m.tool_call_id or "", len(place)))


def with_calls_apart(messages: Iterable[Message], most_calls: int) -> Iterator[Message]:
    """Turns with more calls than a template takes are several, each followed by its results.

    The results are in the order of the calls.
    """
    waiting: list[Message] = []
    results: dict[str | None, list[Message]] = {}
    for message in messages:
        if message.role == "tool" and waiting:
            results.setdefault(message.tool_call_id, []).append(message)
            continue
        yield from _with_results(waiting, results)
        waiting, results = [], {}
        if len(message.tool_calls) <= most_calls:
            yield message
            continue
        for start in range(0, len(message.tool_calls), most_calls):
            calls = message.tool_calls[start : start + most_calls]
            part = message if start == 0 else Message("assistant", "")
            waiting.append(replace(part, tool_calls=calls))
    yield from _with_results(waiting, results)


def _with_results(
    waiting: Iterable[Message], results: dict[str | None, list[Message]]
) -> Iterator[Message]:
    for turn in waiting:
        yield turn
        for call in turn.tool_calls:
            yield from results.pop(call.id, ())
    for rest in results.values():
        yield from rest


def with_reminders_by_system(messages: Iterable[Message]) -> list[Message]:
    """For templates that know no ``latest_reminder``, and would write it as nobody's, or nowhere:
    it instructs, as the system does, and stays where it is if they hear the system there."""
    return [replace(m, role="system") if m.role == "latest_reminder" else m for m in messages]


def with_turns_joined(messages: Iterable[Message]) -> list[Message]:
    """For templates whose roles must alternate: what the same role says in a row is one turn, and
    all of the system's is at the beginning."""
    system = [replace(m, role="system") for m in messages if m.role in SYSTEM_ROLES]
    others = [m for m in messages if m.role not in SYSTEM_ROLES]
    joined: list[Message] = []
    for message in [*system, *others]:
        last = joined[-1] if joined else None
        if last is None or last.role == "tool" or last.tool_calls or last.role != message.role:
            joined.append(message)
        else:
            content = "\n\n".join(filter(None, (last.content, message.content)))
            joined[-1] = replace(message, content=content)
    return joined


def with_system_in_first_turn(messages: Sequence[Message]) -> list[Message]:
    """For templates that know no system: what it says begins the first user's turn."""
    joined = with_turns_joined(messages)
    if not joined or joined[0].role != "system":
        return joined
    system, *turns = joined
    return with_turns_joined([replace(system, role="user"), *turns])


def _hidden(value: object, hide: Hide, known: frozenset[str] = frozenset()) -> object:
    match value:
        case str():
            return value if value in known else hide(value)
        case dict():
            return {_hidden(k, hide, known): _hidden(v, hide, known) for k, v in value.items()}
        case list() | tuple():
            return [_hidden(item, hide, known) for item in value]
    return value
