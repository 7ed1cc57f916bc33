"""One answer, as it will come back in the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.events import (
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
)
from ds4trio.request import Message, ToolCall

if TYPE_CHECKING:
    from ds4trio.chat.format import ParsedEvent


class TurnRecorder:
    """``token_ids`` are the answer's, for who reads them to append."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._thoughts: list[str] = []
        self._text: list[str] = []
        self._calls: list[tuple[ToolCallStarted, list[str]]] = []
        self._ended = 0

    @property
    def is_whole(self) -> bool:
        """Whether no call was cut off."""
        return self._ended == len(self._calls)

    def add(self, event: ParsedEvent) -> None:
        """More of the answer."""
        match event:
            case ThinkingDelta():
                self._thoughts.append(event.text)
            case TextDelta():
                self._text.append(event.text)
            case ToolCallStarted():
                self._calls.append((event, []))
            case ToolArgumentsDelta():
                self._calls[event.index][1].append(event.text)
            case ToolCallEnded():
                self._ended += 1

    def message(self) -> Message:
        """What was told so far."""
        return Message(
            "assistant",
            "".join(self._text),
            reasoning="".join(self._thoughts) or None,
            tool_calls=tuple(
                ToolCall(call.id, call.name, "".join(arguments)) for call, arguments in self._calls
            ),
        )
