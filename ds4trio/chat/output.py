"""Model text to events, ended by stop strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.events import TextDelta

if TYPE_CHECKING:
    from collections.abc import Iterable


class OutputParser:
    """Reads one answer. The events' text is the same however the answer is cut into pieces.

    The answer ends before the stop string that is complete first, as if it came character by
    character; of several complete at once, before the longest. Text that may yet turn out to begin
    a stop string is held back.
    """

    def __init__(self, stop: Iterable[str] = ()) -> None:
        """``stop`` strings are not empty."""
        self._matchers = [_Matcher(text) for text in stop]
        self._first_chars = {matcher.stop[0] for matcher in self._matchers}
        self._held = ""
        #: The stop string that ended the answer.
        self.stop_sequence: str | None = None

    def feed(self, text: str) -> list[TextDelta]:
        """Events for more text; none once a stop string was found."""
        if self.stop_sequence is not None:
            return []
        if not self._held and self._first_chars.isdisjoint(text):
            return _deltas(text)
        known = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            complete = [matcher.stop for matcher in self._matchers if matcher.advance(char)]
            if complete:
                self.stop_sequence = max(complete, key=len)
                return _deltas(known[: end - len(self.stop_sequence)])
        held = max(matcher.matched for matcher in self._matchers)
        sure = len(known) - held
        self._held = known[sure:]
        return _deltas(known[:sure])

    def finish(self, text_end: str = "") -> list[TextDelta]:
        """The last text, and what was held back of it."""
        deltas = self.feed(text_end)
        if self.stop_sequence is not None:
            return deltas
        held, self._held = self._held, ""
        return _deltas("".join([delta.text for delta in deltas]) + held)


class _Matcher:
    """Finds one stop string, a character at a time, in constant time each.

    Source: Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        #: How much of ``stop`` the text ends with.
        self.matched = 0
        # For each length matched: the longest shorter beginning of ``stop`` that also ends it.
        self._shorter = [0]
        for char in stop[1:]:
            self._shorter.append(self._next(self._shorter[-1], char))

    def advance(self, char: str) -> bool:
        """Whether ``char`` completes the stop string, after which the matcher is spent."""
        self.matched = self._next(self.matched, char)
        return self.matched == len(self.stop)

    def _next(self, matched: int, char: str) -> int:
        while matched and self.stop[matched] != char:
            matched = self._shorter[matched - 1]
        return matched + 1 if self.stop[matched] == char else 0


def _deltas(text: str) -> list[TextDelta]:
    return [TextDelta(text)] if text else []
