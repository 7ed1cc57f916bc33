"""Stop strings in text that comes piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class StopStrings:
    """Text up to the stop string that is complete first, as if it came character by character; of
    several complete at once, the longest. Text that may yet turn out to begin one is held back.
    """

    def __init__(self, stop: Iterable[str] = ()) -> None:
        """``stop`` strings are not empty."""
        self._matchers = [_Matcher(text) for text in stop]
        self._first_chars = {matcher.stop[0] for matcher in self._matchers}
        self._held = ""
        #: The stop string that was found.
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """What of the text is before any stop string; nothing once one was found."""
        if self.found is not None:
            return ""
        if not self._held and self._first_chars.isdisjoint(text):
            return text
        known = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            complete = [matcher.stop for matcher in self._matchers if matcher.advance(char)]
            if complete:
                self.found = max(complete, key=len)
                self._held = ""
                return known[: end - len(self.found)]
        held = max(matcher.matched for matcher in self._matchers)
        sure = len(known) - held
        self._held = known[sure:]
        return known[:sure]

    def flush(self) -> str:
        """What was held back: the text ends, or something else interrupts it."""
        held, self._held = self._held, ""
        for matcher in self._matchers:
            matcher.matched = 0
        return held


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
