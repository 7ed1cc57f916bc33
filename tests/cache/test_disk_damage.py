"""Files that are not what they were: a miss, a line in the log, and out of the way."""

from __future__ import annotations

import json
import random
import resource
import shutil
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import torch
from disk_rig import IDENTITY, Disk, chain, joined, same, state
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ds4trio.cache.disk_folder import MOST_BAD_FILES
from ds4trio.cache.disk_format import encode
from ds4trio.cache.disk_metadata import metadata_of
from ds4trio.cache.disk_names import SegmentName
from ds4trio.cache.disk_tensors import stored
from ds4trio.cache.disk_writer import RETRY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IDS = random.Random(1).choices(range(1000), k=600)
LENGTH = 300


@contextmanager
def one_file() -> Iterator[tuple[Disk, Path, bytes]]:
    """A chain of one file whose bytes, and their borders, a test may play with."""
    with TemporaryDirectory() as folder:
        disk = Disk(Path(folder))
        disk.keep(chain(IDS, 200))
        (file,) = disk.files()
        yield disk, file, file.read_bytes()


def borders(data: bytes) -> list[int]:
    """Where its parts begin and end, by the format's definition."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]
    ends = {8 + length + place for tensor in header.values() for place in tensor["data_offsets"]}
    text_end = 8 + len(data[8 : 8 + length].rstrip())
    return sorted({0, 8, text_end, 8 + length, *ends})


def assert_missed(disk: Disk, caplog: pytest.LogCaptureFixture | None = None) -> None:
    """Not found, set aside, said once; and what is offered again is kept again."""
    assert disk.store.find(IDS, 1) == []
    assert disk.store.find(IDS, 1) == []
    assert disk.files() == []
    assert len(disk.bad()) == 1
    if caplog is not None:
        (line,) = [record.getMessage() for record in caplog.records]
        assert "set aside" in line
    disk.keep(chain(IDS, 200))
    assert same(joined(disk.store.find(IDS, 200)), state(IDS, 0, 200))


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_bit_flipped(place: float, bit: int) -> None:
    with one_file() as (disk, file, data):
        damaged = bytearray(data)
        damaged[int(place * len(data))] ^= 1 << bit
        file.write_bytes(damaged)
        assert_missed(disk)


def test_every_part_flipped_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    with one_file() as (disk, file, data):
        parts = borders(data)
        # Length, header, its padding, two types of rows, the tip, and the checksum.
        assert len(parts) == 8
        assert parts[-1] == len(data)
    for first, end in pairwise(parts):
        flipped = data[:first] + bytes([data[first] ^ 0x80]) + data[first + 1 :]
        last = data[: end - 1] + bytes([data[end - 1] ^ 1]) + data[end:]
        for damaged in (flipped, last, data[:first], data[: first + 1], data[: end - 1]):
            caplog.clear()
            with one_file() as (disk, file, _):
                file.write_bytes(damaged)
                assert_missed(disk, caplog)


@pytest.mark.parametrize("damaged", [b"", b"\0" * 24, b"\xff" * 5000, b"{}" * 500])
def test_anything_else(damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with one_file() as (disk, file, data):
        file.write_bytes(damaged)
        assert_missed(disk, caplog)
    with one_file() as (disk, file, data):
        file.write_bytes(data + damaged + b"more")
        assert_missed(disk)


def test_an_honest_file_that_is_not_ours(caplog: pytest.LogCaptureFixture) -> None:
    with one_file() as (disk, file, _):
        save_file({"kv": torch.zeros(30, 200, 2)}, file)
        assert_missed(disk, caplog)


FIELDS = ["format", "model", "tokenizer", "numbers", "start", "stop", "parent", "key", "token_ids"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_whole_file_that_says_otherwise(field: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of another model, tokenizer, version, place, or other tokens, under a name that fits."""
    with one_file() as (disk, file, _):
        name = SegmentName.parse(file.name)
        assert name is not None
        metadata = metadata_of(IDENTITY, name, IDS[:200])
        assert metadata.keys() == set(FIELDS)
        tensors = {key: stored(tensor) for key, tensor in state(IDS, 0, 200).items()}
        file.write_bytes(b"".join(encode(metadata, tensors)))
        assert disk.store.find(IDS, 200)
        file.write_bytes(b"".join(encode(metadata | {field: "2"}, tensors)))
        assert_missed(disk, caplog)
        assert f"another {field}" in caplog.text


TENSORS: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "one less": lambda t: {"kv": t["kv"], "tip.window": t["tip.window"]},
    "one more": lambda t: t | {"more": t["kv"]},
    "other type": lambda t: t | {"kv": t["kv"].to(torch.float64)},
    "other shape": lambda t: t | {"kv": t["kv"][:29].contiguous()},
    "fewer rows": lambda t: t | {"pooled": t["pooled"][1:].contiguous()},
    "no tip": lambda t: {"kv": t["kv"], "pooled": t["pooled"]},
    "other tip": lambda t: t | {"tip.other": t["tip.window"]},
}


@pytest.mark.parametrize("change", TENSORS)
def test_a_whole_file_with_other_tensors(change: str, caplog: pytest.LogCaptureFixture) -> None:
    """As if written by a version of the model's code that saved its states otherwise."""
    with one_file() as (disk, file, _):
        name = SegmentName.parse(file.name)
        assert name is not None
        tensors = TENSORS[change](state(IDS, 0, 200))
        data = {key: stored(tensor) for key, tensor in tensors.items()}
        file.write_bytes(b"".join(encode(metadata_of(IDENTITY, name, None), data)))
        assert_missed(disk, caplog)


def test_what_is_before_a_damaged_file_is_still_found(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.keep(chain(IDS, 200, 600, tips=[200]))
    for file in disk.files():
        if (name := SegmentName.parse(file.name)) and name.start >= 256:
            file.write_bytes(b"")
    assert disk.store.find(IDS, 300) == []
    assert same(joined(disk.store.find(IDS, 1)), state(IDS, 0, 200))


def test_few_damaged_files_are_kept(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for first in range(2 * MOST_BAD_FILES):
        disk.keep(chain([first, *IDS], 20))
        (file,) = disk.files()
        file.write_bytes(b"")
        assert disk.store.find([first, *IDS], 1) == []
    assert len(disk.bad()) == MOST_BAD_FILES


@contextmanager
def full_disk(file_bytes: int) -> Iterator[None]:
    """No file can become larger: writing fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ds4trio.cache")
    disk = Disk(tmp_path)
    disk.keep(chain(IDS, 100))
    with full_disk(30_000):
        disk.keep(chain(IDS, 100, 600))
        disk.keep(chain(IDS, 100, 600))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "cannot write" in line
    assert "File too large" in line
    assert not list(disk.folder.path.glob("*.part"))
    assert disk.store.find(IDS, 1)[-1].stop == 100
    disk.keep(chain(IDS, 100, 600))  # too early for another try
    assert disk.store.find(IDS, 1)[-1].stop == 100
    disk.clock.now += RETRY_S
    disk.keep(chain(IDS, 100, 600))
    assert disk.store.find(IDS, 1)[-1].stop == 600
    assert caplog.messages[1:] == [f"cache: {disk.folder.path} can be written again"]


def test_a_folder_that_vanishes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(tmp_path)
    disk.keep(chain(IDS, 100))
    disk.store.offer(chain(IDS, 100, 200))
    shutil.rmtree(disk.folder.path)
    disk.write()
    assert disk.store.find(IDS, 1) == []
    assert disk.store.find(IDS, 1) == []  # costs no second line
    disk.keep(chain(IDS, 300))
    assert len(caplog.messages) == 2
    assert "cannot write" in caplog.messages[0]
    assert "cannot read" in caplog.messages[1]
