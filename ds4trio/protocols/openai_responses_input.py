"""Input items of the Responses protocol to messages.

An item is one JSON object: a message, the model's own reasoning, a call, what came of it. What the
model said between two inputs (reasoning, text, calls: one item each) is one assistant message.

Refused is what a text model cannot see: images, files, sound. Left out is what no model need see:
compaction marks, calls that OpenAI's servers execute, and item types that are not known, because
agents send new ones with each version and would never recover from a refusal.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from ds4trio.protocols.fields import convert, invalid, required, to_text, unsupported
from ds4trio.protocols.openai_responses_tools import Json, ToolTable, flat_name
from ds4trio.request import Message, Role, ToolCall

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS = frozenset(
    ["input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"]
)


class Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None


Content: TypeAlias = str | list[Part] | None


class MessageItem(msgspec.Struct):
    role: str | None = None
    content: Content = None


class ReasoningItem(msgspec.Struct):
    summary: Content = None
    content: Content = None


class FunctionCallItem(msgspec.Struct):
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None


class OutputItem(msgspec.Struct):
    id: str | None = None
    call_id: str | None = None
    output: Content = None


class ClientCallItem(msgspec.Struct):
    """A call of a tool that has a type of its own, and that the client executes."""

    id: str | None = None
    call_id: str | None = None
    action: Any = None
    operation: Any = None
    arguments: Any = None


class ClientOutputItem(msgspec.Struct):
    id: str | None = None
    call_id: str | None = None
    output: Any = None
    tools: list[dict[str, Any]] | None = None


class ItemReader:
    """Reads items in order. Tools that were searched for are declared in ``table``."""

    def __init__(self, table: ToolTable) -> None:
        self._table = table
        self._messages: list[Message] = []
        self._reasoning: list[str] = []
        self._said: str | None = None
        self._calls: list[ToolCall] = []

    def read(self, items: Sequence[Json], at: str) -> None:
        """Raises: RequestError naming the item's field."""
        for i, item in enumerate(items):
            place = f"{at}[{i}]"
            kind = item.get("type")
            if kind is None and "role" in item:
                kind = "message"
            if not isinstance(kind, str):
                raise invalid(f"{place}.type", "required, but missing or no string")
            reader = _READERS.get(kind)
            if reader is not None:
                reader(self, item, place)

    def messages(self) -> tuple[Message, ...]:
        """All that was read."""
        self._end_turn()
        return tuple(self._messages)

    def add(self, message: Message) -> None:
        """Something that the model did not say."""
        self._end_turn()
        self._messages.append(message)

    def _message(self, item: Json, at: str) -> None:
        read = convert(item, MessageItem, at)
        name = required(read.role, f"{at}.role")
        if name not in _ROLES:
            raise invalid(f"{at}.role", f"{name!r} is not one of {', '.join(_ROLES)}")
        text = content_text(read.content, f"{at}.content")
        if name != "assistant":
            self.add(Message(_ROLES[name], text))
            return
        if self._said is not None or self._calls:
            self._end_turn()
        self._said = text

    def _reason(self, item: Json, at: str) -> None:
        read = convert(item, ReasoningItem, at)
        # The thoughts themselves, if they were given; their summary otherwise.
        text = content_text(read.content, f"{at}.content", "\n")
        text = text or content_text(read.summary, f"{at}.summary", "\n")
        if self._said is not None or self._calls:
            self._end_turn()
        if text:
            self._reasoning.append(text)

    def _call(self, item: Json, at: str) -> None:
        read = convert(item, FunctionCallItem, at)
        call_id = required(read.call_id, f"{at}.call_id")
        name = flat_name(read.namespace, required(read.name, f"{at}.name"))
        custom = item.get("type") == "custom_tool_call"
        arguments = read.input if custom else read.arguments
        field = "input" if custom else "arguments"
        self._calls.append(ToolCall(call_id, name, required(arguments, f"{at}.{field}")))

    def _output(self, item: Json, at: str) -> None:
        read = convert(item, OutputItem, at)
        call_id = required(read.call_id, f"{at}.call_id")
        required(read.output, f"{at}.output")
        text = content_text(read.output, f"{at}.output")
        self.add(Message("tool", text, tool_call_id=call_id))

    def _client_call(self, item: Json, at: str) -> None:
        read = convert(item, ClientCallItem, at)
        name = str(item["type"]).removesuffix("_call")
        # A call without a call_id is one that OpenAI's servers executed.
        if read.call_id is None:
            return
        asked: object = read.arguments or read.action or read.operation or {}
        text = asked if isinstance(asked, str) else to_text(asked, at)
        self._calls.append(ToolCall(read.call_id, name, text))

    def _client_output(self, item: Json, at: str) -> None:
        read = convert(item, ClientOutputItem, at)
        call_id = read.call_id or read.id
        if call_id is None:
            return
        output = "" if read.output is None else read.output
        text = output if isinstance(output, str) else to_text(output, f"{at}.output")
        self.add(Message("tool", text, tool_call_id=call_id))

    def _search_output(self, item: Json, at: str) -> None:
        read = convert(item, ClientOutputItem, at)
        before = set(self._table.specs)
        self._table.declare(read.tools or [], f"{at}.tools", loaded=True)
        found = [name for name in self._table.specs if name not in before]
        if read.call_id is not None:
            text = to_text({"tools": found}, at)
            self.add(Message("tool", text, tool_call_id=read.call_id))

    def _end_turn(self) -> None:
        if self._reasoning or self._said is not None or self._calls:
            message = Message(
                "assistant",
                self._said or "",
                reasoning="\n".join(self._reasoning) or None,
                tool_calls=tuple(self._calls),
            )
            self._messages.append(message)
        self._reasoning, self._said, self._calls = [], None, []


_READERS: Mapping[str, Callable[[ItemReader, Json, str], None]] = {
    "message": ItemReader._message,
    "reasoning": ItemReader._reason,
    "function_call": ItemReader._call,
    "custom_tool_call": ItemReader._call,
    "function_call_output": ItemReader._output,
    "custom_tool_call_output": ItemReader._output,
    "local_shell_call": ItemReader._client_call,
    "shell_call": ItemReader._client_call,
    "apply_patch_call": ItemReader._client_call,
    "tool_search_call": ItemReader._client_call,
    "local_shell_call_output": ItemReader._client_output,
    "shell_call_output": ItemReader._client_output,
    "apply_patch_call_output": ItemReader._client_output,
    "tool_search_output": ItemReader._search_output,
    "additional_tools": ItemReader._search_output,
}


def content_text(content: Content, at: str, between: str = "") -> str:
    """The text of a string or of parts. Raises: RequestError for a part that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    return between.join([_part_text(part, f"{at}[{i}]") for i, part in enumerate(content)])


def _part_text(part: Part, at: str) -> str:
    kind = required(part.type, f"{at}.type")
    if kind not in _TEXT_PARTS:
        raise unsupported(f"{at}.type", f"{kind!r} is not supported: this model reads text only")
    if kind == "refusal":
        return part.refusal or part.text or ""
    return required(part.text, f"{at}.text")


def is_reference(item: Json) -> bool:
    """Whether it only names an item of an earlier response. Its ``type`` may be left out."""
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "id" in item and "role" not in item)


_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "tool_search_call": "tsc",
}
_NO_PREFIX = re.compile("[^a-z]")


def item_prefix(kind: str) -> str:
    """What the ids of items of this type begin with."""
    return _PREFIXES.get(kind) or _NO_PREFIX.sub("", kind.lower()) or "item"


def stored_form(item: Json, new_id: Callable[[], str]) -> Json:
    """An input item as ``GET .../input_items`` shows it: whole, with an id of its own."""
    kind = item.get("type") or "message"
    kept: dict[str, Any] = {"status": "completed", **item, "type": kind}
    if not isinstance(kept.get("id"), str):
        kept["id"] = f"{item_prefix(str(kind))}_{new_id()}"
    if kind == "message" and isinstance(kept.get("content"), str):
        said_by_model = kept.get("role") == "assistant"
        part: dict[str, Any] = {"type": "input_text", "text": kept["content"]}
        if said_by_model:
            part = {"type": "output_text", "text": kept["content"], "annotations": []}
        kept["content"] = [part]
    return kept
