"""The messages of a chat, in all the shapes that clients send.

Source: OpenAI's API reference; ``reasoning_content`` and the role ``latest_reminder``
are DeepSeek's, ``reasoning`` is OpenRouter's.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from collections.abc import Mapping, Sequence

import msgspec

from ds4trio.protocols.fields import invalid, required, to_text, unsupported
from ds4trio.request import Message, Role, ToolCall

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "latest_reminder": "latest_reminder",
}


class ContentPart(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


class CalledCustom(msgspec.Struct):
    name: str | None = None
    input: str | None = None


class MessageToolCall(msgspec.Struct):
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


Content = str | list[ContentPart | str] | None


class ChatMessage(msgspec.Struct):
    role: str | None = None
    content: Content = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: object = None


def messages(sent: Sequence[ChatMessage] | None) -> tuple[Message, ...]:
    """Raises: RequestError."""
    sent = required(sent, "messages")
    if not sent:
        raise invalid("messages", "at least one message is needed")
    return tuple([_message(m, f"messages[{i}]") for i, m in enumerate(sent)])


def _message(message: ChatMessage, at: str) -> Message:
    name = required(message.role, f"{at}.role")
    if name == "function":
        raise unsupported(f"{at}.role", "functions are not supported; use tools instead")
    if name not in _ROLES:
        raise invalid(f"{at}.role", f"not one of {', '.join(_ROLES)}")
    if message.function_call is not None:
        raise unsupported(f"{at}.function_call", "not supported; use tool_calls instead")
    role = _ROLES[name]
    content = _text(message.content, f"{at}.content")
    if role == "tool":
        return Message(role, content, message.name, tool_call_id=message.tool_call_id)
    if role != "assistant":
        return Message(role, content, message.name)
    calls = enumerate(message.tool_calls or ())
    return Message(
        role,
        content or message.refusal or "",
        message.name,
        reasoning=message.reasoning_content or message.reasoning or None,
        tool_calls=tuple([_call(call, f"{at}.tool_calls[{i}]") for i, call in calls]),
    )


def _call(call: MessageToolCall, at: str) -> ToolCall:
    if call.type == "custom":
        custom = required(call.custom, f"{at}.custom")
        name = required(custom.name, f"{at}.custom.name")
        return ToolCall(call.id or "", name, custom.input or "")
    function = required(call.function, f"{at}.function")
    arguments = function.arguments
    if isinstance(arguments, dict):
        arguments = to_text(arguments, f"{at}.function.arguments")
    name = required(function.name, f"{at}.function.name")
    return ToolCall(call.id or "", name, arguments or "")


def _text(content: Content, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join([_part(part, f"{at}[{i}]") for i, part in enumerate(content)])


def _part(part: ContentPart | str, at: str) -> str:
    if isinstance(part, str):
        return part
    match required(part.type, f"{at}.type"):
        case "text" | "input_text" | "output_text":
            return required(part.text, f"{at}.text")
        case "refusal":
            return required(part.refusal, f"{at}.refusal")
        case kind:
            raise unsupported(f"{at}.type", f"{kind!r}: this model reads only text")
