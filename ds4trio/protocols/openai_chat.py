"""``POST /v1/chat/completions``.

Source: OpenAI's API reference, and what its official clients and agents built on them insist on.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, assert_never

import msgspec

from ds4trio.errors import Ds4TrioError
from ds4trio.events import Finished, GenerationEvent, PromptProgress, TextDelta
from ds4trio.protocols.fields import invalid, read, required, unsupported
from ds4trio.protocols.openai_answer import (
    AnswerFrame,
    encode_json,
    error_body,
    failure,
    fold,
    new_hex_id,
)
from ds4trio.protocols.openai_fields import (
    UNSERVED,
    GenerationFields,
    Positive,
    min_tokens,
    refuse_unserved,
    sampling,
    stop_strings,
)
from ds4trio.protocols.wire import ParsedRequest, WireEvent
from ds4trio.request import Conversation, GenerationRequest, Message, Role

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class ContentPart(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class ChatMessage(msgspec.Struct):
    role: str | None = None
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[object] | None = None
    function_call: object = None


class ResponseFormat(msgspec.Struct):
    type: str | None = None


class ChatFields(GenerationFields, kw_only=True):
    messages: list[ChatMessage] | None = None
    max_completion_tokens: Positive | None = None

    tools: list[object] | None = None
    tool_choice: object = None
    functions: list[object] | None = None
    function_call: object = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    audio: object = None
    web_search_options: object = None


_UNSERVED_IN_CHAT: Mapping[str, object] = {
    **UNSERVED,
    "logprobs": False,
    "top_logprobs": 0,
    "modalities": ["text"],
    "audio": None,
    "web_search_options": None,
}


@dataclass(frozen=True, slots=True)
class OpenAIChat:
    """``now`` is in seconds since the epoch."""

    new_id: Callable[[], str] = new_hex_id
    now: Callable[[], float] = time.time

    name: ClassVar[str] = "chat"
    path: ClassVar[str] = "/v1/chat/completions"

    def parse(self, body: bytes, served_model_name: str) -> ParsedRequest:
        """Raises: RequestError naming the field."""
        fields = read(body, ChatFields)
        refuse_unserved(fields, _UNSERVED_IN_CHAT)
        _refuse_tools(fields)
        if fields.response_format is not None and fields.response_format.type not in (None, "text"):
            raise unsupported("response_format", "only text is supported by this server")
        max_tokens = fields.max_completion_tokens or fields.max_tokens
        generation = GenerationRequest(
            prompt=Conversation(_messages(fields)),
            model=fields.model or None,
            sampling=sampling(fields),
            max_tokens=max_tokens,
            min_tokens=min_tokens(fields, max_tokens),
            stop=stop_strings(fields),
            ignore_eos=bool(fields.ignore_eos),
        )
        frame = AnswerFrame(
            id="chatcmpl-" + self.new_id(),
            created=int(self.now()),
            model=fields.model or served_model_name,
            include_usage=fields.include_usage,
        )
        return ParsedRequest(generation, bool(fields.stream), ChatWriter(frame))

    def render_error(self, error: Ds4TrioError) -> bytes:
        return error_body(error, "messages")


class ChatWriter:
    """A ``chat.completion``, or its ``chat.completion.chunk``s."""

    def __init__(self, frame: AnswerFrame) -> None:
        self._frame = frame
        self._head = frame.head(_CHUNK)
        self._tail = frame.chunk_tail
        self._text_head = self._head + b'{"index":0,"delta":{"content":'
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def start(self) -> Sequence[WireEvent]:
        return [self._chunk(b'{"role":"assistant","content":"","refusal":null}')]

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        out: list[WireEvent] = []
        for event in events:
            match event:
                case TextDelta(text):
                    out.append(WireEvent(self._text_head + encode_json(text) + self._text_tail))
                case Finished(reason, usage):
                    out.append(self._chunk(b"{}", encode_json(reason)))
                    out += self._frame.ending(_CHUNK, usage)
                case PromptProgress():
                    pass
                case _:
                    assert_never(event)
        return out

    def heartbeat(self) -> WireEvent:
        """A chunk that adds nothing.

        Not a comment: qwen-code's idle timer counts only data. Not ``choices: []``, which a script
        that reads ``choices[0]`` trips over; every client knows an empty delta from the last chunk.
        """
        return self._chunk(b"{}")

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        return failure(error, "messages")

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        text, finished = fold(events)
        choice = (
            b'{"index":0,"message":{"role":"assistant","content":%b,"refusal":null},'
            b'"logprobs":null,"finish_reason":%b}' % (text, encode_json(finished.reason))
        )
        return self._frame.body(_WHOLE, choice, finished.usage)

    def _chunk(self, delta: bytes, finish_reason: bytes = b"null") -> WireEvent:
        choice = b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}'
        return WireEvent(self._head + choice % (delta, finish_reason) + self._tail)


_WHOLE = "chat.completion"
_CHUNK = "chat.completion.chunk"


def _refuse_tools(fields: ChatFields) -> None:
    if fields.tools and fields.tool_choice != "none":
        raise unsupported("tools")
    if fields.functions and fields.function_call != "none":
        raise unsupported("functions")


def _messages(fields: ChatFields) -> tuple[Message, ...]:
    messages = required(fields.messages, "messages")
    if not messages:
        raise invalid("messages", "at least one message is needed")
    return tuple(_message(m, f"messages[{i}]") for i, m in enumerate(messages))


def _message(message: ChatMessage, at: str) -> Message:
    name = required(message.role, f"{at}.role")
    if name not in _ROLES:
        raise invalid(f"{at}.role", f"not one of {', '.join(_ROLES)}")
    role = _ROLES[name]
    if role == "tool":
        raise unsupported(f"{at}.role", "tool results are not supported by this server")
    if message.tool_calls:
        raise unsupported(f"{at}.tool_calls")
    if message.function_call is not None:
        raise unsupported(f"{at}.function_call")
    return Message(role, _text(message.content, f"{at}.content"), message.name)


def _text(content: str | list[ContentPart] | None, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join([_part(part, f"{at}[{i}]") for i, part in enumerate(content)])


def _part(part: ContentPart, at: str) -> str:
    if required(part.type, f"{at}.type") != "text":
        raise unsupported(f"{at}.type", "only text is supported by this server")
    return required(part.text, f"{at}.text")
