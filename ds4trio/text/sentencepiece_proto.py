"""The pieces in a SentencePiece model file, and how each is meant.

The ``sentencepiece`` package does not tell user-defined pieces from others, nor can it change them;
the file is Protocol Buffers, of which this module knows what it needs.

Source: ``sentencepiece_model.proto`` (ModelProto.pieces = 1; SentencePiece.piece = 1, type = 3) and
the Protocol Buffers encoding guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PIECES_FIELD = 1
_TEXT_FIELD = 1
_TYPE_FIELD = 3


class PieceType(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """``type_offset`` is where the type's one byte stands in the file; None if it is left out."""

    text: str
    type: PieceType
    type_offset: int | None


def read_pieces(model: bytes) -> list[Piece]:
    """The pieces, in the order of their ids. Raises: LoadError."""
    try:
        pieces = [
            _read_piece(model, start, end)
            for field, start, end in _fields(model, 0, len(model))
            if field == _PIECES_FIELD
        ]
    except (ValueError, IndexError):
        pieces = []
    if not pieces:
        raise LoadError("not a SentencePiece model, or a damaged one")
    return pieces


def with_piece_types(model: bytes, pieces: Iterable[Piece], type_: PieceType) -> bytes:
    """The model with these pieces' types changed."""
    changed = bytearray(model)
    for piece in pieces:
        assert piece.type_offset is not None  # only normal pieces leave their type out
        changed[piece.type_offset] = type_
    return bytes(changed)


def _read_piece(model: bytes, start: int, end: int) -> Piece:
    text, type_, type_offset = "", PieceType.NORMAL, None
    for field, at, stop in _fields(model, start, end):
        if field == _TEXT_FIELD:
            text = model[at:stop].decode()
        elif field == _TYPE_FIELD:
            type_, type_offset = PieceType(model[at]), at
    return Piece(text, type_, type_offset)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field's value. Raises: ValueError, IndexError."""
    while at < end:
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                _, stop = _varint(data, at)
            case 1:
                stop = at + 8
            case 2:
                length, at = _varint(data, at)
                stop = at + length
            case 5:
                stop = at + 4
            case kind:
                raise ValueError(f"unknown wire type {kind}")
        if stop > end:
            raise ValueError("a field ends beyond its message")
        yield key >> 3, at, stop
        at = stop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A base-128 number and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
