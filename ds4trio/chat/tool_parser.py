"""Tool calls in an answer's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ds4trio.chat.call_reader import ArgumentsReader, CallReader, JsonArguments, PlainInput
from ds4trio.chat.held import held_length
from ds4trio.chat.json_reader import Progress
from ds4trio.events import TextDelta, ToolArgumentsDelta, ToolCallEnded, ToolCallStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ds4trio.chat.markup import ToolMarkup
    from ds4trio.request import ToolSpec

    ToolEvent = TextDelta | ToolCallStarted | ToolArgumentsDelta | ToolCallEnded


class CallParser(Protocol):
    """Text to text and calls, in some model's markup."""

    @property
    def opening(self) -> str:
        """What announces calls."""
        ...

    @property
    def started(self) -> int:
        """How many calls were started."""
        ...

    @property
    def ended(self) -> int:
        """How many of them are whole."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the answer is whole: nothing more comes of any text."""
        ...

    def feed(self, text: str) -> list[ToolEvent]:
        """Events for more text."""
        ...

    def finish(self) -> list[ToolEvent]:
        """What was held back."""
        ...


class ToolParser:
    """Text to text and calls.

    A call starts once its name is known and ends with its JSON. What looks like the beginning of
    calls and is not, is text. A call that breaks off has no end; what follows the break is text.
    Whitespace before, between and after calls belongs to the markup. Calls of tools that were not
    offered are told too: who runs the tools can then tell the model.
    """

    def __init__(
        self, markup: ToolMarkup, tools: Iterable[ToolSpec], new_id: Callable[[], str]
    ) -> None:
        """``new_id`` makes the ids of calls."""
        self._markup = markup
        #: What announces calls.
        self.opening = markup.opening
        self._tools = {tool.name: tool for tool in tools}
        self._new_id = new_id
        self._events: list[ToolEvent] = []
        self._read: Callable[[str], str] = self._read_text
        # Text that is not yet known to be text; inside calls, all of them that is in no event.
        self._held = ""
        # How much of what is held can only be text if it is no call.
        self._opening_length = 0
        self._is_list = False
        self._call = CallReader()
        self._arguments: ArgumentsReader | None = None
        self._after_call = False
        self._may_begin_bare = markup.bare
        #: How many calls were started, and how many ended.
        self.started = self.ended = 0
        #: After calls there may be text.
        self.is_over = False

    def feed(self, text: str) -> list[ToolEvent]:
        """Events for more text."""
        while text:
            text = self._read(text)
        return self._take_events()

    def finish(self) -> list[ToolEvent]:
        """What was held back: text, unless it belongs to a call that was cut off."""
        while self._read != self._read_text:
            if self._arguments is not None or self._read == self._read_after_call:
                self._held = ""
            text = self._give_up()
            while text:
                text = self._read(text)
        if not (self._after_call and self._held.isspace()):
            self._say(self._held)
        self._held = ""
        return self._take_events()

    def _take_events(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events

    def _say(self, text: str) -> None:
        if text:
            self._events.append(TextDelta(text))
            self._after_call = self._may_begin_bare = False

    # Each state reads some text and returns what the next one has to read.

    def _read_text(self, text: str) -> str:
        known, opening = self._held + text, self.opening
        begun = known.lstrip()
        if self._may_begin_bare and begun.startswith("{"):
            # The brace is read again, as the call's.
            return self._begin_calls(len(known) - len(begun) + 1, known, reread=1)
        at = known.find(opening)
        if at >= 0:
            said = known[:at].rstrip()
            self._say(said)
            return self._begin_calls(at + len(opening) - len(said), known[len(said) :])
        markup = held_length(known, opening)
        said = known[: len(known) - markup].rstrip()
        self._say(said)
        self._held = known[len(said) :]
        return ""

    def _begin_calls(self, opening_length: int, text: str, reread: int = 0) -> str:
        self._opening_length = opening_length
        self._held = text[: opening_length - reread]
        self._is_list = self._may_begin_bare = False
        self._read = self._read_before_call
        return text[opening_length - reread :]

    def _read_before_call(self, text: str) -> str:
        space = len(text) - len(text.lstrip())
        self._held += text[:space]
        text = text[space:]
        if text.startswith("{"):
            self._call = CallReader()
            self._read = self._read_call
            return text
        if text.startswith("[") and self._opening_length and not self._is_list:
            self._is_list = True
            self._held += "["
            return text[1:]
        return self._give_up() + text if text else ""

    def _read_call(self, text: str) -> str:
        for at, char in enumerate(text):
            progress = self._call.feed(char)
            if progress is Progress.WRONG:
                return self._give_up() + text[at:]
            self._held += char
            if self._arguments is None and self._call.name is not None and not self._start():
                return self._give_up() + text[at + 1 :]
            self._tell_arguments()
            if progress is Progress.LAST:
                self._end()
                return text[at + 1 :]
        return ""

    def _read_after_call(self, text: str) -> str:
        known, closing = self._held + text, self._markup.closing
        begun = known.lstrip()
        self._held = known
        if not begun:
            return ""
        if begun[0] == self._separator():
            self._read = self._read_before_call
            self._held = known[: len(known) - len(begun) + 1]
            return begun[1:]
        if self._is_list and begun[0] == "]":
            self._is_list, self._held = False, ""
            return begun[1:]
        if not self._is_list and closing.startswith(begun) and begun != closing:
            return ""
        self._held, self._read = "", self._read_text
        if not self._is_list and closing and begun.startswith(closing):
            return begun[len(closing) :]
        return known

    def _separator(self) -> str | None:
        """What stands before a further call without an opening of its own."""
        if self._is_list:
            return ","
        return ";" if self._markup.bare else None

    def _give_up(self) -> str:
        """What is held is text after all. Returns what of it may yet hold calls."""
        held, self._held = self._held, ""
        self._arguments = None
        self._say(held[: self._opening_length])
        self._read = self._read_text
        held = held[self._opening_length :]
        self._opening_length = 0
        return held

    def _start(self) -> bool:
        name = self._call.name
        assert name is not None  # asked for only then
        tool = self._tools.get(name)
        if tool is None and self._markup.bare:
            return False
        is_custom = tool is not None and tool.grammar is not None
        self._arguments = PlainInput() if is_custom else JsonArguments()
        self._events.append(ToolCallStarted(self.started, self._new_id(), name))
        self.started += 1
        self._forget_held()
        return True

    def _tell_arguments(self) -> None:
        if self._arguments is not None and (written := self._call.take_arguments()):
            self._forget_held()
            if text := self._arguments.feed(written):
                self._events.append(ToolArgumentsDelta(self.started - 1, text))

    def _forget_held(self) -> None:
        self._held, self._opening_length = "", 0

    def _end(self) -> None:
        index = self.started - 1
        if not self._call.has_arguments and isinstance(self._arguments, JsonArguments):
            self._events.append(ToolArgumentsDelta(index, "{}"))
        self._events.append(ToolCallEnded(index))
        self.ended += 1
        self._arguments = None
        self._after_call = True
        self._forget_held()
        self._read = self._read_after_call
