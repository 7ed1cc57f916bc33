"""The metadata of a ``.gguf`` file, without its tensors.

The ``gguf`` package's reader makes several arrays of each value, which takes seconds for a
vocabulary; a tokenizer needs only the header. Source: ggml ``docs/gguf.md``, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct("<4sIQQ")  # magic, version, tensors, entries
#: Value types of fixed size, as `struct` writes them. Others: 8 is a string, 9 an array.
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_FORMATS |= {12: "d"}
_STRING, _ARRAY = 8, 9


def read_gguf_metadata(path: Path) -> dict[str, object]:
    """All entries as plain Python values. Raises: LoadError naming the file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            magic, version, _, entries = _HEADER.unpack_from(data)
            if magic != b"GGUF":
                raise LoadError(f"{path}: not a GGUF file")
            if version not in (2, 3):
                raise LoadError(f"{path}: GGUF version {version} is not supported")
            reader = _Reader(data, _HEADER.size)
            return {reader.string(): reader.value(reader.number("I")) for _ in range(entries)}
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from None
    except (struct.error, ValueError, KeyError, OverflowError):
        raise LoadError(f"{path}: truncated or damaged GGUF file") from None


class _Reader:
    """Reads values one after another."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self._at = at

    def numbers(self, format_: str, count: int) -> list[object]:
        layout = f"<{count}{format_}"
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return list(values)

    def number(self, format_: str) -> int:
        (value,) = self.numbers(format_, 1)
        assert isinstance(value, int)
        return value

    def string(self) -> str:
        length = self.number("Q")
        end = self._at + length
        if end > len(self._data):
            raise ValueError("a string ends beyond the file")
        text = self._data[self._at : end].decode()
        self._at = end
        return text

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element, count = self.number("I"), self.number("Q")
            if element in _FORMATS:
                return self.numbers(_FORMATS[element], count)
            return [self.value(element) for _ in range(count)]
        return self.numbers(_FORMATS[kind], 1)[0]
