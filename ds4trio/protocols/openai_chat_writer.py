"""A ``chat.completion``, or its ``chat.completion.chunk``s.

Streams are written with the constant parts of a chunk prepared once an answer, so that a token
costs the encoding of its text and one concatenation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from ds4trio.events import (
    Finished,
    PromptProgress,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    UsageSoFar,
)
from ds4trio.protocols.folded import fold, total_usage
from ds4trio.protocols.logprobs import chat_tokens
from ds4trio.protocols.openai_answer import encode_json, failure
from ds4trio.protocols.wire import WireEvent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent, TokenLogprob
    from ds4trio.protocols.folded import Answer, Called
    from ds4trio.protocols.openai_answer import AnswerFrame
    from ds4trio.request import GenerationRequest

_WHOLE = "chat.completion"
_CHUNK = "chat.completion.chunk"


class ChatWriter:
    """Writes as many answers as the request asks for."""

    def __init__(self, frame: AnswerFrame, request: GenerationRequest) -> None:
        self._frame = frame
        self._custom_tools = {tool.name for tool in request.tools if tool.grammar is not None}
        #: Calls of custom tools, which have another shape: (choice, index).
        self._custom_calls: set[tuple[int, int]] = set()
        self._running = set(range(request.n))
        head = frame.head(_CHUNK)
        self._heads = [head + b'{"index":%d,"delta":' % choice for choice in range(request.n)]
        self._set_tail(frame.chunk_tail())

    def start(self) -> Sequence[WireEvent]:
        """Every choice's first chunk, in order: OpenAI's own readers count on that."""
        delta = b'{"role":"assistant","content":"","refusal":null}'
        return [WireEvent(head + delta + self._no_end) for head in self._heads]

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        out: list[WireEvent] = []
        for event in events:
            match event:
                case TextDelta():
                    out.append(self._text(event))
                case ThinkingDelta(text, choice):
                    out.append(self._delta(choice, {"reasoning_content": text}))
                case ToolCallStarted():
                    out.append(self._tool_call(event))
                case ToolArgumentsDelta():
                    out.append(self._arguments(event))
                case UsageSoFar(usage):
                    self._set_tail(self._frame.chunk_tail(usage))
                case ToolCallEnded() | PromptProgress():
                    pass
                case Finished():
                    out += self._end(event)
                case _:
                    assert_never(event)
        return out

    def heartbeat(self) -> WireEvent:
        """A chunk that adds nothing.

        Not a comment: qwen-code's idle timer counts only data. Not ``choices: []``, which a script
        that reads ``choices[0]`` trips over; every client knows an empty delta from the last chunk.
        """
        return self._delta(min(self._running, default=0), {})

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        return failure(error, "messages")

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        choices = [
            encode_json(self._choice(index, answer)) for index, answer in enumerate(fold(events))
        ]
        return self._frame.body(_WHOLE, b",".join(choices), total_usage(events))

    def _set_tail(self, tail: bytes) -> None:
        self._tail = tail
        self._no_end = b',"logprobs":null,"finish_reason":null}' + tail
        self._text_end = b"}" + self._no_end

    def _text(self, event: TextDelta) -> WireEvent:
        text = self._heads[event.choice] + b'{"content":' + encode_json(event.text)
        if not event.logprobs:
            return WireEvent(text + self._text_end)
        logprobs = encode_json(_logprobs(event.logprobs))
        end = b'},"logprobs":%b,"finish_reason":null}' % logprobs
        return WireEvent(text + end + self._tail)

    def _tool_call(self, event: ToolCallStarted) -> WireEvent:
        kind = self._kind(event.name)
        if kind == "custom":
            self._custom_calls.add((event.choice, event.index))
        call = {"index": event.index} | _call(kind, event.id, event.name, "")
        return self._delta(event.choice, {"tool_calls": [call]})

    def _arguments(self, event: ToolArgumentsDelta) -> WireEvent:
        custom = (event.choice, event.index) in self._custom_calls
        more = (
            {"custom": {"input": event.text}} if custom else {"function": {"arguments": event.text}}
        )
        return self._delta(event.choice, {"tool_calls": [{"index": event.index, **more}]})

    def _end(self, event: Finished) -> Sequence[WireEvent]:
        self._running.discard(event.choice)
        end = b'{},"logprobs":null,"finish_reason":%b}' % encode_json(event.reason)
        last = WireEvent(self._heads[event.choice] + end + self._tail)
        return [last] if event.remaining else [last, *self._frame.ending(_CHUNK, event.usage)]

    def _delta(self, choice: int, delta: Mapping[str, object]) -> WireEvent:
        return WireEvent(self._heads[choice] + encode_json(delta) + self._no_end)

    def _choice(self, index: int, answer: Answer) -> dict[str, object]:
        text = answer.text
        message: dict[str, object] = {
            "role": "assistant",
            "content": text if text or not answer.calls else None,
            "refusal": None,
        }
        if thinking := answer.thinking:
            message["reasoning_content"] = thinking
        if answer.calls:
            message["tool_calls"] = [self._whole_call(call) for call in answer.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": _logprobs(answer.logprobs) if answer.logprobs else None,
            "finish_reason": answer.finished.reason,
        }

    def _whole_call(self, call: Called) -> dict[str, object]:
        return _call(self._kind(call.name), call.id, call.name, call.arguments)

    def _kind(self, tool: str) -> str:
        return "custom" if tool in self._custom_tools else "function"


def _call(kind: str, id_: str, name: str, arguments: str) -> dict[str, object]:
    argument = "input" if kind == "custom" else "arguments"
    return {"id": id_, "type": kind, kind: {"name": name, argument: arguments}}


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, object]:
    return {"content": chat_tokens(tokens), "refusal": None}
