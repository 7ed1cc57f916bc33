"""A Responses answer: events to items, items to the stream's words and to the whole object.

The whole answer is made by the same steps as a stream, so that the two cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, assert_never

from ds4trio.errors import (
    ContextOverflowError,
    OverloadedError,
    RequestCancelledError,
    RequestError,
)
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
from ds4trio.protocols.openai_answer import encode_json
from ds4trio.protocols.openai_responses_items import (
    MessageItem,
    OutputItem,
    ReasoningItem,
    SummaryItem,
    call_item,
)
from ds4trio.protocols.wire import WireEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent, TokenLogprob, Usage
    from ds4trio.protocols.openai_responses_items import Event
    from ds4trio.protocols.openai_responses_tools import ToolTable

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

#: Not a comment: Codex counts only data. Of a type that says nothing, as OpenAI's own is.
KEEPALIVE = WireEvent(b'{"type":"keepalive"}', "keepalive")


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """What stands around an answer's output. ``echo`` are the request's own fields, repeated.

    ``created`` is in seconds since the epoch. ``background`` answers wait in the queue before they
    are in progress; others count as in progress from the start.
    """

    id: str
    created: int
    model: str
    echo: Mapping[str, object]
    summarised: bool = False
    background: bool = False


class ResponsesWriter:
    """A ``response``, or the events that lead to it."""

    def __init__(
        self,
        frame: ResponseFrame,
        tools: ToolTable,
        new_id: Callable[[], str],
        now: Callable[[], float],
    ) -> None:
        self._frame = frame
        self._tools = tools
        self._new_id = new_id
        self._now = now
        self._sequence = 0
        self._items: list[OutputItem] = []
        #: What takes text, or thoughts, if that was said last.
        self._saying: OutputItem | None = None
        self._calls: dict[int, OutputItem] = {}
        #: Log probabilities that came before any text that could bear them.
        self._waiting_logprobs: list[TokenLogprob] = []
        self.status: Status = "queued" if frame.background else "in_progress"
        self._completed_at: int | None = None
        self._usage: Usage | None = None
        self._error: dict[str, object] | None = None

    @property
    def id(self) -> str:
        return self._frame.id

    def start(self) -> Sequence[WireEvent]:
        first = self._lifecycle("created")
        return [first, self._lifecycle(self.status)]

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        out: list[WireEvent] = []
        if events and self.status == "queued":
            self.status = "in_progress"
            out.append(self._lifecycle("in_progress"))
        for event in events:
            match event:
                case ThinkingDelta(text):
                    kind = SummaryItem if self._frame.summarised else ReasoningItem
                    out += self._say(kind, text)
                case TextDelta(text, logprobs=logprobs):
                    out += self._text(text, logprobs)
                case ToolCallStarted(index, call_id, name):
                    out += self._fall_silent()
                    place = len(self._items)
                    named = self._tools.call_name(name)
                    call = call_item(place, self._new_id(), call_id, named)
                    self._calls[index] = call
                    out += self._open(call)
                case ToolArgumentsDelta(index, text):
                    out += self._words(self._calls[index].piece(text))
                case ToolCallEnded(index):
                    out += self._close(self._calls.pop(index), "completed")
                case Finished():
                    out += self._finish(event)
                case PromptProgress() | UsageSoFar():
                    pass
                case _:
                    assert_never(event)
        return out

    def heartbeat(self) -> WireEvent:
        return KEEPALIVE

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        """``error`` for the official clients, ``response.failed`` for Codex.

        Items that were begun are not closed: an item that is done is acted upon.
        """
        for item in self._items:
            if item.status == "in_progress":
                item.status = "incomplete"
        if isinstance(error, RequestCancelledError):
            self.status = "cancelled"
        else:
            self.status = "failed"
            self._error = {"code": _code(error), "message": _message(error)}
        told = error_word(error, self._sequence)
        self._sequence += 1
        return [told, self._lifecycle("failed")]

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        self.feed(events)
        return self.response()

    def response(self) -> bytes:
        """The response object as it stands."""
        return encode_json(self._response())

    def output(self) -> list[dict[str, object]]:
        """The items as they stand."""
        return [item.snapshot() for item in self._items]

    def _text(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> list[WireEvent]:
        if not text and not isinstance(self._saying, MessageItem):
            self._waiting_logprobs += logprobs
            return []
        waiting, self._waiting_logprobs = self._waiting_logprobs, []
        return self._say(MessageItem, text, [*waiting, *logprobs])

    def _say(
        self, kind: type[OutputItem], text: str, logprobs: Sequence[TokenLogprob] = ()
    ) -> list[WireEvent]:
        out: list[WireEvent] = []
        if not isinstance(self._saying, kind):
            out += self._fall_silent()
            self._saying = kind(len(self._items), self._new_id())
            out += self._open(self._saying)
        out += self._words(self._saying.piece(text, logprobs))
        return out

    def _fall_silent(self) -> list[WireEvent]:
        if self._saying is None:
            return []
        item, self._saying = self._saying, None
        return self._close(item, "completed")

    def _finish(self, finished: Finished) -> list[WireEvent]:
        cut = finished.reason == "length"
        out: list[WireEvent] = []
        for item in self._items:
            if item.status == "in_progress":
                whole = item is self._saying and not cut
                out += self._close(item, "completed" if whole else "incomplete")
        self._saying = None
        self._calls.clear()
        self.status = "incomplete" if cut else "completed"
        self._completed_at = None if cut else int(self._now())
        self._usage = finished.usage
        return [*out, self._lifecycle(self.status)]

    def _open(self, item: OutputItem) -> list[WireEvent]:
        added = {"output_index": item.output_index, "item": item.snapshot()}
        self._items.append(item)
        return [self._word("response.output_item.added", added), *self._words(item.opening())]

    def _close(
        self, item: OutputItem, status: Literal["completed", "incomplete"]
    ) -> list[WireEvent]:
        words = self._words(item.closing())
        item.status = status
        done = {"output_index": item.output_index, "item": item.snapshot()}
        return [*words, self._word("response.output_item.done", done)]

    def _lifecycle(self, name: str) -> WireEvent:
        return self._word(f"response.{name}", {"response": self._response()})

    def _words(self, events: Sequence[Event]) -> list[WireEvent]:
        return [self._word(name, fields) for name, fields in events]

    def _word(self, name: str, fields: Mapping[str, object]) -> WireEvent:
        body = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return WireEvent(encode_json(body), name)

    def _response(self) -> dict[str, object]:
        reason = {"reason": "max_output_tokens"} if self.status == "incomplete" else None
        return {
            "id": self._frame.id,
            "object": "response",
            "created_at": self._frame.created,
            "completed_at": self._completed_at,
            "status": self.status,
            "background": self._frame.background,
            "error": self._error,
            "incomplete_details": reason,
            "model": self._frame.model,
            "output": self.output(),
            "usage": None if self._usage is None else _usage(self._usage),
            **self._frame.echo,
        }


def error_word(error: Ds4TrioError, sequence_number: int) -> WireEvent:
    """What is said of an error in a stream, by itself."""
    body = {
        "type": "error",
        "sequence_number": sequence_number,
        "code": _code(error),
        "message": _message(error),
        "param": error.param if isinstance(error, RequestError) else None,
    }
    return WireEvent(encode_json(body), "error")


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_prompt_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.thinking_tokens},
        "total_tokens": usage.prompt_tokens + usage.generated_tokens,
    }


def _code(error: Ds4TrioError) -> str:
    """Codex tries again unless the code says that it is of no use: for the asker's faults."""
    if isinstance(error, ContextOverflowError):
        return "context_length_exceeded"
    if isinstance(error, OverloadedError):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, RequestError) else "server_error"


def _message(error: Ds4TrioError) -> str:
    if isinstance(error, OverloadedError):
        # Codex reads from the words how long to wait.
        return f"{error.message} Please try again in {error.retry_after_s}s."
    return error.message
