"""Model text of one answer to events: thoughts, then calls, then stop strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.chat.stop import StopStrings
from ds4trio.chat.thought_calls import ThoughtCalls
from ds4trio.events import (
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ds4trio.chat.format import ParsedEvent
    from ds4trio.chat.thinking import ThinkingSplitter
    from ds4trio.chat.tool_parser import CallParser, ToolEvent


class AnswerParser:
    """A `ds4trio.chat.format.OutputParser`.

    Stop strings end the answer's text; in thoughts and in tool calls they mean nothing.
    """

    def __init__(
        self,
        stop: Iterable[str] = (),
        *,
        thinking: ThinkingSplitter | None = None,
        new_tools: Callable[[], CallParser] | None = None,
        one_call: bool = False,
    ) -> None:
        """Without ``thinking`` all is answer, without ``new_tools`` calls are text. ``one_call``:
        the answer ends with its first call."""
        self._stop = StopStrings(stop)
        self._thinking = thinking
        self._tools = new_tools() if new_tools else None
        self._thought_calls = ThoughtCalls(new_tools) if new_tools and thinking else None
        self._one_call = one_call
        self.called_tools = False
        self.is_done = False

    @property
    def stop_sequence(self) -> str | None:
        return self._stop.found

    @property
    def in_thinking(self) -> bool:
        return self._thinking is not None and self._thinking.in_thinking

    def feed(self, text: str) -> Sequence[ParsedEvent]:
        return [] if self.is_done else _joined(self._split(text))

    def finish(self, text_end: str = "") -> Sequence[ParsedEvent]:
        if self.is_done:
            return []
        events = self._split(text_end)
        if self._thinking is not None:
            for piece in self._thinking.finish():
                events += self._piece(piece.text, is_thought=piece.is_thought)
        if self._thought_calls is not None:
            thought, calls = self._thought_calls.finish()
            events += _thought(thought)
            events += self._told(calls)
        if self._tools is not None:
            events += self._told(self._tools.finish())
        events += _text(self._stop.flush())
        self.is_done = True
        return _joined(events)

    def _split(self, text: str) -> list[ParsedEvent]:
        if self._thinking is None:
            return self._piece(text, is_thought=False)
        events: list[ParsedEvent] = []
        for piece in self._thinking.feed(text):
            events += self._piece(piece.text, is_thought=piece.is_thought)
        if self._thought_calls is not None and not self._thinking.in_thinking:
            events += _thought(self._thought_calls.flush())
        return events

    def _piece(self, text: str, *, is_thought: bool) -> list[ParsedEvent]:
        if is_thought:
            return _thought(self._thought_calls.feed(text) if self._thought_calls else text)
        events: list[ParsedEvent] = _thought(
            self._thought_calls.flush() if self._thought_calls else ""
        )
        if self._tools is None:
            return events + self._told(_text(text))
        events += self._told(self._tools.feed(text))
        if self._tools.is_over and not self.is_done:
            events += _text(self._stop.flush())
            self.is_done = True
        return events

    def _told(self, tool_events: Sequence[ToolEvent]) -> list[ParsedEvent]:
        events: list[ParsedEvent] = []
        for event in tool_events:
            if self.is_done:
                break
            match event:
                case TextDelta():
                    events += _text(self._stop.feed(event.text))
                    self.is_done = self._stop.found is not None
                    continue
                case ToolCallStarted():
                    events += _text(self._stop.flush())
                    self.called_tools = True
                case ToolCallEnded():
                    self.is_done = self._one_call
            events.append(event)
        return events


def _text(text: str) -> list[TextDelta]:
    return [TextDelta(text)] if text else []


def _thought(text: str) -> list[ParsedEvent]:
    return [ThinkingDelta(text)] if text else []


def _joined(events: list[ParsedEvent]) -> list[ParsedEvent]:
    """The same with fewer events: what goes on from one to the next is in one."""
    joined: list[ParsedEvent] = []
    for event in events:
        match joined[-1] if joined else None, event:
            case TextDelta() as last, TextDelta():
                joined[-1] = TextDelta(last.text + event.text)
            case ThinkingDelta() as last, ThinkingDelta():
                joined[-1] = ThinkingDelta(last.text + event.text)
            case ToolArgumentsDelta() as last, ToolArgumentsDelta() if last.index == event.index:
                joined[-1] = ToolArgumentsDelta(last.index, last.text + event.text)
            case _:
                joined.append(event)
    return joined
