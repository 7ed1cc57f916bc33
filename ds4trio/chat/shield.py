"""User text that a template cannot turn into control tokens.

A template's output is one text, in which the control tokens it wrote and those that a user typed
look alike. So before rendering, some characters of the user's text are hidden: replaced by private
use characters that stand for them. What still looks like a control token afterwards is the
template's own.

Hidden are
- characters chosen so that every control token's spelling has one of them: then no spelling can
  come of user text alone, however the template cuts and joins it;
- at the borders of a text, what could be part of a spelling that the template's text begins or
  ends. Whitespace at the borders does not count: templates trim it, and it stays where it is;
- the private use characters themselves, so that each stand-in has one meaning.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from ds4trio.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Plane 16, all of it for private use, less the last two code points, which are noncharacters.
_STAND_INS = range(0x100000, 0x10FFFE)


class ControlShield:
    """What has to be hidden for one vocabulary."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._spellings = frozenset(spellings)
        self._longest = max(map(len, self._spellings), default=0)
        self._prefixes = {s[:end] for s in self._spellings for end in range(1, len(s))}
        self._suffixes = {s[start:] for s in self._spellings for start in range(1, len(s))}
        telling = "".join(map(re.escape, sorted(_telling_characters(self._spellings))))
        self._telling = re.compile(f"[\U00100000-\U0010fffd{telling}]")

    def disguise(self) -> Disguise:
        """Hides and reveals the characters of one conversation."""
        return Disguise(self)

    def positions(self, text: str) -> set[int]:
        """Where in a text the characters to be hidden are."""
        found = self._border_positions(text)
        found.update(match.start() for match in self._telling.finditer(text))
        return found

    def _border_positions(self, text: str) -> set[int]:
        core = text.strip()
        first = len(text) - len(text.lstrip())
        end = first + len(core)
        found: set[int] = set()
        for length in range(1, min(self._longest, len(core) + 1)):
            if core[-length:] in self._prefixes:
                found.add(end - length)
            if core[:length] in self._suffixes:
                found.add(first + length - 1)
        if core and len(core) < self._longest and any(core in s for s in self._spellings):
            found.add(first)
        return found


class Disguise:
    """Stand-ins for the hidden characters of one conversation."""

    def __init__(self, shield: ControlShield) -> None:
        self._shield = shield
        self._free = map(chr, _STAND_INS)
        self._stand_in_of: dict[str, str] = {}
        self._revealed: dict[int, str] = {}

    def hide(self, text: str) -> str:
        """The text with its dangerous characters hidden. Raises: RequestError."""
        positions = self._shield.positions(text)
        if not positions:
            return text
        chars = list(text)
        for position in positions:
            chars[position] = self._stand_in(chars[position])
        return "".join(chars)

    def reveal(self, text: str) -> str:
        """The text with all hidden characters back in their places."""
        return text.translate(self._revealed)

    def _stand_in(self, char: str) -> str:
        if char not in self._stand_in_of:
            stand_in = next(self._free, None)
            if stand_in is None:
                raise RequestError("too many private use characters", param="messages")
            self._stand_in_of[char] = stand_in
            self._revealed[ord(stand_in)] = char
        return self._stand_in_of[char]


def _telling_characters(spellings: frozenset[str]) -> set[str]:
    """A few characters of which every spelling has at least one; punctuation if possible.

    Of equally useful ones the last in code point order is taken: ``|`` before ``>`` before ``<``,
    so that templates can still look for markup in a message.
    """
    chosen: set[str] = set()
    uncovered = set(spellings)
    while uncovered:
        uses = Counter(c for spelling in uncovered for c in set(spelling) if not c.isspace())
        best = max(uses, key=lambda c: (not c.isalnum(), uses[c], c))
        chosen.add(best)
        uncovered = {spelling for spelling in uncovered if best not in spelling}
    return chosen
