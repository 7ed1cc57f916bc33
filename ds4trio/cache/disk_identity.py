"""Which model and which tokenizer: digests that files on disk carry, so that they find their own.

A digest must change whenever the same tokens could leave other keys and values behind. It is
computed once, while the model loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: Files up to this are read whole: half a second at worst.
WHOLE_BYTES = 1024 * 1024 * 1024
#: Of larger ones, so much of the beginning (where names, types and shapes of tensors are) ...
HEAD_BYTES = 16 * 1024 * 1024
#: ... and so much of every stretch, which is less than one projection of a model that large.
SAMPLE_BYTES = 64 * 1024
STRETCH_BYTES = 4 * 1024 * 1024

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose segments they are. All in hexadecimal digits, but ``numbers``: how the model computes,
    in words of the caller's choice."""

    model: str
    tokenizer: str
    numbers: str

    @property
    def digest(self) -> str:
        return sha256("\0".join((self.model, self.tokenizer, self.numbers)).encode()).hexdigest()


def identify(source: Path, numbers: str) -> Identity:
    """Of a model's folder or ``.gguf`` file. Blocks: a second for a gigabyte, half a minute for a
    hundred. Raises: OSError."""
    if source.is_dir():
        weights = [source / "config.json", *sorted(source.glob("*.safetensors"))]
        tokenizer = [file for name in _TOKENIZER_FILES if (file := source / name).is_file()]
    else:
        weights = tokenizer = [source]
    return Identity(_digest(weights), _digest(tokenizer), numbers)


def _digest(files: Sequence[Path]) -> str:
    whole = sha256()
    for file in files:
        whole.update(f"{file.name}\0{_file_digest(file)}\0".encode())
    return whole.hexdigest()


def _file_digest(file: Path) -> str:
    """Of a whole file, or of its samples, size and time of change, which together notice an edit
    that the samples miss."""
    hasher = xxhash.xxh3_128()
    with file.open("rb", buffering=0) as opened:
        size = file.stat().st_size
        hasher.update(str(size).encode())
        if size > WHOLE_BYTES:
            hasher.update(str(file.stat().st_mtime_ns).encode())
        for start, stop in _samples(size):
            opened.seek(start)
            while start < stop and (piece := opened.read(min(stop - start, STRETCH_BYTES))):
                hasher.update(piece)
                start += len(piece)
    return hasher.hexdigest()


def _samples(size: int) -> Iterator[tuple[int, int]]:
    """What is read of a file of this size. Units: bytes from its beginning."""
    if size <= WHOLE_BYTES:
        yield 0, size
        return
    yield 0, HEAD_BYTES
    for start in range(HEAD_BYTES, size, STRETCH_BYTES):
        yield start, min(start + SAMPLE_BYTES, size)
