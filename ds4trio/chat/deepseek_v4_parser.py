"""DSML in an answer's text: text and tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.chat.deepseek_v4_arguments import Arguments, JsonArguments, PlainInput
from ds4trio.chat.deepseek_v4_dsml import (
    DSML,
    MARK,
    PLAIN,
    Opening,
    begins_with,
    find_tag,
    may_become_header,
    read_header,
    read_opening,
)
from ds4trio.events import TextDelta, ToolArgumentsDelta, ToolCallEnded, ToolCallStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ds4trio.chat.deepseek_v4_dsml import Header, Tags
    from ds4trio.chat.tool_parser import ToolEvent
    from ds4trio.request import ToolSpec

_THINKING_END = "</think>"
_LINE_BREAK = "\n"


class DsmlParser:
    """Text to text and calls. What is not DSML beyond doubt is text, until a call has begun.

    A call begins with its ``invoke`` and ends with its end tag, or with what can only come after
    it: the end of the block, the next call. A call that is cut off has no end. Within a call, what
    is no parameter is skipped; a parameter without a name is named by what stands in its tag.
    After a call only more calls count: with anything else the answer `is_over`, as it is for
    DeepSeek's own parser. Tags with other bars (ASCII, doubled, one missing), or with none if the
    block began so, are let; so are attributes in any order and quotes. Line breaks at the beginning
    and before calls belong to the markup, and so does a second ``</think>``.
    """

    #: What announces calls.
    opening = f"<{MARK}"

    def __init__(
        self,
        tools: Iterable[ToolSpec],
        new_id: Callable[[], str],
        *,
        reads_calls: bool = True,
        in_block: bool = False,
    ) -> None:
        """``new_id`` makes the ids of calls. ``reads_calls`` False: all DSML is text. ``in_block``:
        the prompt has begun the calls."""
        self._tools = {tool.name: tool for tool in tools}
        self._new_id = new_id
        self._events: list[ToolEvent] = []
        self._text = ""
        self._tags: Tags = DSML
        self._markers: tuple[str, ...] = (_THINKING_END,)
        if reads_calls:
            self._markers += (*DSML.block, *DSML.call, *PLAIN.block)
        self._line_breaks = _LINE_BREAK if reads_calls else ""
        self._arguments: Arguments = PlainInput()
        # Each state reads some of the text, and says whether there is more to be read of it.
        self._read: Callable[[], bool] = self._read_calls if in_block else self._read_beginning
        #: How many calls were started, and how many ended.
        self.started = self.ended = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of any text."""
        return self._read == self._read_nothing

    @property
    def in_structure(self) -> bool:
        """Whether the text goes on with tags, names or JSON's signs, once calls have begun."""
        if self._read == self._read_value:
            # What is held back may be the end tag: surely, if it is more than any end tag has.
            return len(self._text) > len("</") or not self._arguments.in_payload
        return self._read in (self._read_opening, self._read_call, self._read_calls)

    def feed(self, text: str) -> list[ToolEvent]:
        """Events for more text."""
        self._text += text
        while self._read():
            pass
        return self._take_events()

    def finish(self) -> list[ToolEvent]:
        """What was held back: text, unless it belongs to a call that was cut off."""
        if not self.started:
            self._say(len(self._text))
        self._text = ""
        return self._take_events()

    def _take_events(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events

    def _say(self, length: int) -> None:
        """The text up to there is text, and read."""
        if said := self._text[:length]:
            self._events.append(TextDelta(said))
        self._text = self._text[length:]

    # ---- before the first call

    def _read_beginning(self) -> bool:
        self._text = self._text.lstrip("\n")
        if self._text:
            self._read = self._read_text
        return bool(self._text)

    def _read_text(self) -> bool:
        at, length = find_tag(self._text, self._markers)
        if not length:
            self._say(len(self._text[:at].rstrip(self._line_breaks)))
            return False
        if self._text.startswith(_THINKING_END, at):
            self._say(at)
            self._text = self._text[length:]
            return True
        self._say(len(self._text[:at].rstrip("\n")))
        self._read = self._read_opening
        return True

    def _read_opening(self) -> bool:
        """Line breaks and the tag of a block or a call; all of it is text if no call follows."""
        start = self._text.index("<")
        self._tags = PLAIN if begins_with(self._text, PLAIN.block, start) else DSML
        opening = read_opening(self._text, self._tags, start)
        match opening:
            case Opening(None):
                self._text = self._text[opening.end :]
                self._read = self._read_beginning
            case Opening():
                self._begin_call(opening)
            case "part":
                return False
            case "none":
                self._say(start + find_tag(self._text, self._markers, start)[1])
                self._read = self._read_text
        return True

    # ---- calls

    def _begin_call(self, opening: Opening) -> None:
        name = opening.name or ""
        tool = self._tools.get(name)
        is_custom = tool is not None and tool.grammar is not None
        self._arguments = PlainInput() if is_custom else JsonArguments(tool)
        self._events.append(ToolCallStarted(self.started, self._new_id(), name))
        self.started += 1
        self._text = self._text[opening.end :]
        self._read = self._read_call

    def _tell(self, text: str) -> None:
        if text:
            self._events.append(ToolArgumentsDelta(self.started - 1, text))

    def _read_call(self) -> bool:
        """Between parameters."""
        tags = self._tags
        at, length = find_tag(
            self._text, (*tags.parameter, *tags.call_end, *tags.block_end, *tags.call)
        )
        self._text = self._text[at:]
        if not length:
            return False
        header = read_header(self._text, length)
        if header is None and may_become_header(self._text, length):
            return False
        if begins_with(self._text, tags.parameter):
            if header is not None:
                self._begin_parameter(header)
        else:
            self._end_call()
            if not begins_with(self._text, tags.call_end):
                return True
        self._text = self._text[length + (header.length if header else 0) :]
        return True

    def _begin_parameter(self, header: Header) -> None:
        name, said = header.attribute("name"), header.attribute("string")
        is_string = None if said is None else said.lower() != "false"
        name = header.text if name is None else name
        self._tell(self._arguments.begin(name, is_string=is_string))
        self._read = self._read_value

    def _end_call(self) -> None:
        self._tell(self._arguments.finish())
        self._events.append(ToolCallEnded(self.started - 1))
        self.ended += 1
        self._read = self._read_calls

    def _read_value(self) -> bool:
        tags = self._tags
        at, length = find_tag(self._text, (*tags.parameter_end, *tags.call_end, *tags.block_end))
        self._tell(self._arguments.value(self._text[:at]))
        self._text = self._text[at:]
        if not length:
            return False
        self._tell(self._arguments.end())
        if begins_with(self._text, tags.parameter_end):
            self._text = self._text[length:]
        self._read = self._read_call
        return True

    def _read_calls(self) -> bool:
        """After a call, or where the prompt has begun the calls: only tags and space."""
        self._text = self._text.lstrip()
        opening = read_opening(self._text, self._tags)
        match opening:
            case Opening(None):
                self._text = self._text[opening.end :]
            case Opening():
                self._begin_call(opening)
            case "part":
                return False
            case "none":
                self._read = self._read_nothing if self.started else self._read_text
        return True

    def _read_nothing(self) -> bool:
        self._text = ""
        return False
