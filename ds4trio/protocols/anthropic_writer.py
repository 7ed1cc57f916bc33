"""A Messages answer, whole or as its stream of events.

A stream is ``message_start``, then blocks -- each begun, filled and ended -- then ``message_delta``
with the reason for the end, and ``message_stop``. Text and thinking end where something else
begins; a tool call where the model ends it, or the answer. ``message_start`` tells the length of
the prompt, so it waits for the first event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, assert_never

import msgspec

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
from ds4trio.protocols.anthropic_errors import failure
from ds4trio.protocols.folded import Called, Said, Thought, fold
from ds4trio.protocols.wire import WireEvent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import FinishReason, GenerationEvent, Usage
    from ds4trio.protocols.folded import Part

_encode = msgspec.json.Encoder().encode
_NO_INPUT = msgspec.Raw(b"{}")

_STOP_REASONS: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class MessageWriter:
    def __init__(self, id_: str, model: str) -> None:
        self._id = id_
        self._model = model
        self._started = False
        self._blocks = 0
        #: The text or thinking block that goes on: its kind and index.
        self._run: tuple[Literal["text", "thinking"], int] | None = None
        #: The open blocks of tool calls, by call.
        self._calls: dict[int, int] = {}

    def start(self) -> Sequence[WireEvent]:
        return []

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        out: list[WireEvent] = []
        for event in events:
            if not self._started:
                out.append(self._begin(event))
            match event:
                case TextDelta(text):
                    out += self._continue("text", text)
                case ThinkingDelta(text):
                    out += self._continue("thinking", text)
                case ToolCallStarted(index, id_, name):
                    out += self._end_run()
                    self._calls[index] = self._blocks
                    out.append(self._open(_tool_use(id_, name, _NO_INPUT)))
                case ToolArgumentsDelta(index, text):
                    delta = {"type": "input_json_delta", "partial_json": text}
                    out.append(_delta(self._calls[index], delta))
                case ToolCallEnded(index):
                    out.append(_stop(self._calls.pop(index)))
                case Finished():
                    out += self._finish(event)
                case PromptProgress() | UsageSoFar():
                    pass
                case _:
                    assert_never(event)
        return out

    def heartbeat(self) -> WireEvent:
        return _event("ping", {})

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        return failure(error)

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        (answer,) = fold(events)
        message = self._message([self._whole_block(part) for part in answer.parts])
        return _encode(
            message | _ending(answer.finished) | {"usage": _usage(answer.finished.usage)}
        )

    def _begin(self, event: GenerationEvent) -> WireEvent:
        self._started = True
        total = event.total if isinstance(event, PromptProgress) else 0
        usage = {
            "input_tokens": total,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", {"message": message})

    def _continue(self, kind: Literal["text", "thinking"], text: str) -> list[WireEvent]:
        """More of the open block, or a new one."""
        out: list[WireEvent] = []
        if self._run is None or self._run[0] != kind:
            out += self._end_run()
            self._run = (kind, self._blocks)
            out.append(self._open(_text("") if kind == "text" else _thinking("", "")))
        out.append(_delta(self._run[1], {"type": f"{kind}_delta", kind: text}))
        return out

    def _end_run(self) -> list[WireEvent]:
        if self._run is None:
            return []
        kind, index = self._run
        self._run = None
        if kind == "text":
            return [_stop(index)]
        delta = {"type": "signature_delta", "signature": self._id}
        return [_delta(index, delta), _stop(index)]

    def _open(self, block: Mapping[str, object]) -> WireEvent:
        index = self._blocks
        self._blocks += 1
        return _event("content_block_start", {"index": index, "content_block": block})

    def _finish(self, end: Finished) -> list[WireEvent]:
        out = self._end_run()
        out += [_stop(index) for index in self._calls.values()]
        self._calls.clear()
        delta = {"delta": _ending(end), "usage": _usage(end.usage)}
        return [*out, _event("message_delta", delta), _event("message_stop", {})]

    def _message(self, content: list[Mapping[str, object]]) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
        }

    def _whole_block(self, part: Part) -> Mapping[str, object]:
        match part:
            case Said():
                return _text(part.text)
            case Thought():
                return _thinking(part.text, self._id)
            case Called():
                return _tool_use(part.id, part.name, _input(part.arguments))
            case _:
                assert_never(part)


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _thinking(text: str, signature: str) -> dict[str, object]:
    """The signature is any word: nothing is hidden in it, and nothing is made of it later."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def _tool_use(id_: str, name: str, input_: msgspec.Raw) -> dict[str, object]:
    return {"type": "tool_use", "id": id_, "name": name, "input": input_}


def _input(arguments: str) -> msgspec.Raw:
    """A call's arguments as they are; of a call that was cut off none, rather than some."""
    try:
        msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return _NO_INPUT
    return msgspec.Raw(arguments.encode())


def _ending(end: Finished) -> dict[str, object]:
    stopped = end.stop_sequence
    reason = _STOP_REASONS[end.reason] if stopped is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stopped}


def _usage(usage: Usage) -> dict[str, object]:
    """``input_tokens`` are those that were neither read from a cache nor written to one."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_prompt_tokens,
        "output_tokens": usage.generated_tokens,
        "output_tokens_details": {"thinking_tokens": usage.thinking_tokens},
    }


def _delta(index: int, delta: Mapping[str, object]) -> WireEvent:
    return _event("content_block_delta", {"index": index, "delta": delta})


def _stop(index: int) -> WireEvent:
    return _event("content_block_stop", {"index": index})


def _event(name: str, fields: Mapping[str, object]) -> WireEvent:
    return WireEvent(_encode({"type": name, **fields}), name)
