"""Where a model's thoughts end and its answer begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.chat.held import held_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from ds4trio.chat.markup import ThinkingMarkup


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a model's text; never empty."""

    text: str
    is_thought: bool


class ThinkingSplitter:
    """Text to thoughts and answer.

    Thoughts are marked at the beginning or not at all. Line breaks after either mark, and before
    the second, belong to the markup. Without the second mark all is thought.
    """

    def __init__(self, markup: ThinkingMarkup, *, opened: bool) -> None:
        """``opened``: the prompt has begun the thoughts; a model that marks them again is let."""
        self._markup = markup
        self._opened = opened
        self._held = ""
        self._read: Callable[[str], tuple[str, str, bool]] = self._read_beginning
        self._skip_breaks = opened
        #: Whether the text so far ends within the thoughts.
        self.in_thinking = opened

    def feed(self, text: str) -> list[Piece]:
        """What more text is."""
        pieces: list[Piece] = []
        while text:
            said, text, is_thought = self._read(text)
            if said:
                pieces.append(Piece(said, is_thought))
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back."""
        held, self._held = self._held, ""
        return [Piece(held, self.in_thinking)] if held else []

    # Each state says some of a text, what is left to be read, and whether the former is a thought.

    def _read_beginning(self, text: str) -> tuple[str, str, bool]:
        known, start = self._held + text, self._markup.start
        begun = known.lstrip()
        if start.startswith(begun) and begun != start:
            self._held = known
            return "", "", False
        self._held = ""
        if begun.startswith(start):
            self.in_thinking = self._skip_breaks = True
            known = begun[len(start) :]
        self._read = self._read_thoughts if self.in_thinking else self._read_answer
        return "", known, False

    def _read_thoughts(self, text: str) -> tuple[str, str, bool]:
        known, end = self._held + text, self._markup.end
        if self._skip_breaks:
            known = known.lstrip("\n")
            self._skip_breaks = not known
        at = known.find(end)
        if at >= 0:
            self._held, self.in_thinking = "", False
            self._skip_breaks, self._read = True, self._read_answer
            return known[:at].rstrip("\n"), known[at + len(end) :], True
        said = known[: len(known) - held_length(known, end)].rstrip("\n")
        self._held = known[len(said) :]
        return said, "", True

    def _read_answer(self, text: str) -> tuple[str, str, bool]:
        if self._skip_breaks:
            text = text.lstrip("\n")
            self._skip_breaks = not text
        return text, "", False
