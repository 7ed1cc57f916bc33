"""Control tokens by their spelling: in what a template wrote, and in what a model answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class ControlSplitter:
    """Cuts text at the spellings of control tokens: the leftmost first, the longest of several."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self._ids = dict(control_tokens)
        longest_first = sorted(control_tokens, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(f"({alternatives})") if alternatives else None

    def split(self, text: str) -> list[str | int]:
        """Plain text and control token ids, in order. No empty text."""
        if self._pattern is None:
            return [text] if text else []
        ids = self._ids
        # A pattern with one group alternates: text, spelling, text, ...
        pieces = self._pattern.split(text)
        return [ids[piece] if index % 2 else piece for index, piece in enumerate(pieces) if piece]


def visible_bytes(
    control_tokens: Mapping[str, int], spellings: Collection[str]
) -> dict[int, bytes]:
    """The text of those control tokens that are to be seen as text."""
    return {
        control_tokens[spelling]: spelling.encode()
        for spelling in spellings
        if spelling in control_tokens
    }
