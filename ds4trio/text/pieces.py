"""How vocabularies spell bytes."""

from __future__ import annotations

import re

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
#: What SentencePiece writes for a space: LOWER ONE EIGHTH BLOCK.
SPACE_MARK = "▁"


def byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies.

    Printable Latin-1 stands for itself; the other bytes, in order, take the characters from U+0100
    on. Source: GPT-2's ``bytes_to_unicode``, kept by every byte-level BPE since.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


def byte_level_bytes(piece: str, alphabet: dict[str, int]) -> bytes:
    """A piece's bytes. A piece with a character outside the alphabet is its own UTF-8 text."""
    try:
        return bytes([alphabet[char] for char in piece])
    except KeyError:
        return piece.encode()


def sentencepiece_bytes(piece: str, *, byte_fallback: bool) -> bytes:
    """A piece's bytes: ``▁`` is a space and, with byte fallback, ``<0x0A>`` a byte."""
    if byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE_MARK, " ").encode()
