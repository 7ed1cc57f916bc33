"""A ``text_completion``, whole or in chunks of the same shape."""

from __future__ import annotations

from collections import Counter
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
from ds4trio.protocols.logprobs import completion_logprobs, offset_after
from ds4trio.protocols.openai_answer import encode_json, failure
from ds4trio.protocols.wire import WireEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent, TokenLogprob
    from ds4trio.protocols.openai_answer import AnswerFrame

_KIND = "text_completion"


class CompletionWriter:
    def __init__(self, frame: AnswerFrame) -> None:
        self._frame = frame
        self._head = frame.head(_KIND)
        self._set_tail(frame.chunk_tail())
        #: By choice: where its next token begins, in characters.
        self._offsets: Counter[int] = Counter()

    def start(self) -> Sequence[WireEvent]:
        return []

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        out: list[WireEvent] = []
        for event in events:
            match event:
                case TextDelta():
                    out.append(self._text(event))
                case Finished(reason, usage, choice=choice, remaining=remaining):
                    end = _choice(choice, b'""', b"null", encode_json(reason))
                    out.append(WireEvent(self._head + end + self._tail))
                    if not remaining:
                        out += self._frame.ending(_KIND, usage)
                case UsageSoFar(usage):
                    self._set_tail(self._frame.chunk_tail(usage))
                case PromptProgress():
                    pass
                case ThinkingDelta() | ToolCallStarted() | ToolArgumentsDelta() | ToolCallEnded():
                    pass  # belong to conversations
                case _:
                    assert_never(event)
        return out

    def heartbeat(self) -> None:
        """A comment serves: no client of this endpoint is known to count only data, and benchmarks
        count chunks as tokens."""

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        return failure(error, "prompt")

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        choices = [
            _choice(
                index,
                encode_json(answer.text),
                _logprobs(answer.logprobs, 0),
                encode_json(answer.finished.reason),
            )
            for index, answer in enumerate(fold(events))
        ]
        return self._frame.body(_KIND, b",".join(choices), total_usage(events))

    def _set_tail(self, tail: bytes) -> None:
        self._tail = tail
        self._text_end = b',"logprobs":null,"finish_reason":null}' + tail

    def _text(self, event: TextDelta) -> WireEvent:
        text = encode_json(event.text)
        if not event.logprobs:
            head = b'{"index":%d,"text":' % event.choice
            return WireEvent(self._head + head + text + self._text_end)
        offset = self._offsets[event.choice]
        self._offsets[event.choice] = offset_after(event.logprobs, offset)
        choice = _choice(event.choice, text, _logprobs(event.logprobs, offset), b"null")
        return WireEvent(self._head + choice + self._tail)


def _logprobs(tokens: Sequence[TokenLogprob], first_offset: int) -> bytes:
    return encode_json(completion_logprobs(tokens, first_offset)) if tokens else b"null"


def _choice(index: int, text: bytes, logprobs: bytes, finish_reason: bytes) -> bytes:
    choice = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}'
    return choice % (index, text, logprobs, finish_reason)
