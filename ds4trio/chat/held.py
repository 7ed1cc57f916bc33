"""Text that must wait, since it may be the beginning of something."""

from __future__ import annotations


def held_length(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that begins ``marker`` and is not all of it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
