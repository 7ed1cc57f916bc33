"""One segment as one file: safetensors, with a checksum of all the rest as its last tensor.

::

    header's length (8 bytes) | header (JSON) | tensors, largest items first | checksum (16 bytes)

The checksum (XXH3, 128 bits) covers every byte before it, header and length included, so that the
file stays an ordinary safetensors file and no bit of it can change unnoticed. It guards against
disks and crashes, not against people: who can write into the folder is trusted.

Knows nothing of tokens, models or torch.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

CHECKSUM = "checksum"
CHECKSUM_BYTES = 16

#: Header lengths are padded to a multiple of this, so that all tensors are aligned.
_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
#: Read and checked at once: fits a core's own cache.
_PIECE_BYTES = 1024 * 1024

#: safetensors' names of types, and the bytes of an item.
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}


class _Entry(msgspec.Struct, frozen=True):
    """A tensor, in a header. Units: bytes from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class DamagedFileError(Exception):
    """It is not what it was when it was written, or was never one of ours. Says why."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as bytes. ``kind`` is safetensors' name of its type; ``data`` are its bytes in
    order, in an array of any shape, which need not be contiguous."""

    kind: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True, slots=True)
class Contents:
    """Of a file. The tensors' data may be written to."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, Stored]


def encode(metadata: Mapping[str, str], tensors: Mapping[str, Stored]) -> Iterator[memoryview]:
    """The file, piece by piece."""
    # The largest items first, so that each lies at a multiple of its size.
    ordered = sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name].kind], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    for name in ordered:
        tensor = tensors[name]
        header[name] = _Entry(tensor.kind, tensor.shape, (place, place + tensor.nbytes))
        place += tensor.nbytes
    header[CHECKSUM] = _Entry("U8", (CHECKSUM_BYTES,), (place, place + CHECKSUM_BYTES))
    text = msgspec.json.encode(header)
    text += b" " * (-(len(text) + _LENGTH.size) % _ALIGNMENT)
    hasher = xxhash.xxh3_128()
    header_bytes = memoryview(_LENGTH.pack(len(text)) + text)
    # One tensor after the other: only one at a time is made contiguous.
    data = (np.ascontiguousarray(tensors[name].data).data for name in ordered)
    for piece in chain([header_bytes], data):
        hasher.update(piece)
        yield piece
    yield memoryview(hasher.digest())


def read(path: Path, most_bytes: int) -> Contents:
    """A file, whole and checked.

    It is read and not mapped: a mapped file that is cut, or that the disk cannot give any more,
    would kill the process. Raises: OSError; DamagedFileError, also for more than ``most_bytes``.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if not _LENGTH.size + CHECKSUM_BYTES <= size <= most_bytes:
            raise DamagedFileError(f"it has {size} bytes")
        # numpy asks for large pages, which halve what fresh memory costs.
        data = np.empty(size, np.uint8)
        hasher, done, end = xxhash.xxh3_128(), 0, size - CHECKSUM_BYTES
        while done < size:
            taken = file.readinto(data[done : done + _PIECE_BYTES].data)
            if not taken:
                raise DamagedFileError("it became shorter while it was read")
            hasher.update(data[done : min(done + taken, end)].data)
            done += taken
    if hasher.digest() != data[end:].tobytes():
        raise DamagedFileError("its checksum does not agree with its contents")
    (length,) = _LENGTH.unpack_from(data.data)
    metadata, entries = _parse(data[_LENGTH.size : _LENGTH.size + length].data)
    payload = data[_LENGTH.size + length :]
    tensors = {name: _stored(entry, payload) for name, entry in entries.items()}
    tensors.pop(CHECKSUM, None)
    return Contents(metadata, tensors)


def read_metadata(path: Path) -> Mapping[str, str]:
    """What a file says of itself, unchecked. Raises: OSError, DamagedFileError."""
    with path.open("rb") as file:
        size, prefix = os.fstat(file.fileno()).st_size, file.read(_LENGTH.size)
        if len(prefix) < _LENGTH.size or (length := _LENGTH.unpack(prefix)[0]) > size:
            raise DamagedFileError("it is cut short, or no safetensors file")
        return _parse(file.read(length))[0]


def _parse(header: bytes | memoryview) -> tuple[dict[str, str], dict[str, _Entry]]:
    try:
        parts = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(parts.pop("__metadata__", b"{}"), type=dict[str, str])
        return metadata, {
            name: msgspec.json.decode(entry, type=_Entry) for name, entry in parts.items()
        }
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"its header cannot be read: {error}") from None


def _stored(entry: _Entry, payload: npt.NDArray[np.uint8]) -> Stored:
    start, stop = entry.data_offsets
    wanted = prod(entry.shape) * ITEM_BYTES.get(entry.dtype, 0)
    if not 0 <= start <= stop <= len(payload) or stop - start != wanted:
        raise DamagedFileError("a tensor of it is not where its header says")
    return Stored(entry.dtype, entry.shape, payload[start:stop])
