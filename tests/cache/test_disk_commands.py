"""``ds4trio cache``: what it lists, removes and finds damaged."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING

import pytest
from disk_rig import DENSE, IDENTITY, Disk, dense_chain

from ds4trio import cli
from ds4trio.cache.disk_metadata import metadata_of
from ds4trio.cache.disk_names import SegmentName

if TYPE_CHECKING:
    from pathlib import Path

IDS = random.Random(4).choices(range(1000), k=1000)
OTHER = [*IDS[:256], *IDS[600:]]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Two prefixes, which share a file."""
    disk = Disk(tmp_path, kind=DENSE)
    for token_ids, stop in ((IDS, 600), (OTHER, 300)):
        disk.keep(dense_chain(token_ids, stop))
        for file in disk.files():
            os.utime(file, (0, file.stat().st_mtime - 3600))
    return disk


def run(disk: Disk, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, object]:
    with pytest.raises(SystemExit) as end:
        cli.main(["cache", *arguments, "--cache-dir", str(disk.cache_dir)])
    return capsys.readouterr().out, end.value.code


def test_ls(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    out, code = run(disk, capsys, "ls", "--json")
    assert code == 0
    newer, older = json.loads(out)
    assert (newer["tokens"], older["tokens"]) == (300, 600)
    sizes = {file.name: file.stat().st_size for file in disk.files()}
    names = [SegmentName.parse(name) for name in sizes]
    assert {newer["prefix"], older["prefix"]} == {
        name.key[:12] for name in names if name and name.stop in (300, 600)
    }
    out, _ = run(disk, capsys, "ls")
    assert f"2 prefixes in 4 files, {sum(sizes.values()) / 1e6:.1f} MB together" in out
    for token_id in (IDS[0], IDS[1]):
        assert f" {token_id} " not in out


def test_rm_leaves_what_others_share(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(disk, capsys, "ls", "--json")
    _, older = json.loads(out)
    out, code = run(disk, capsys, "rm", older["prefix"][:6])
    assert (out.split(",")[0], code) == ("removed 2 files", 0)
    assert disk.store.find(OTHER, 300)
    assert disk.store.find(IDS, 1)[-1].stop == 256
    assert run(disk, capsys, "rm", "--all")[1] == 0
    assert disk.files() == []


@pytest.mark.parametrize(
    ("arguments", "says"), [(["zz"], "no such prefix"), ([], "--all"), (["--all", "a"], "--all")]
)
def test_rm_of_nothing(
    disk: Disk, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    _, code = run(disk, capsys, "rm", *arguments)
    assert says in str(code)
    assert len(disk.files()) == 4


def test_verify(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(disk, capsys, "verify") == ("4 files read, 0 damaged\n", 0)
    flipped, renamed, *_ = disk.files()
    data = bytearray(flipped.read_bytes())
    data[-1] ^= 1
    flipped.write_bytes(data)
    name = SegmentName.parse(renamed.name)
    assert name is not None
    assert metadata_of(IDENTITY, name, None)["key"] == name.key
    renamed.rename(renamed.with_name(renamed.name.replace(name.key, "0" * 32)))
    out, code = run(disk, capsys, "verify")
    assert out.endswith("4 files read, 2 damaged\n")
    assert "checksum" in out
    assert "another key" in out
    assert code == 1
    assert len(disk.bad()) == 2
    assert run(disk, capsys, "verify") == ("2 files read, 0 damaged\n", 0)


def test_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["cache", "ls"])
    assert "cache_dir is not set" in str(end.value.code)
    with pytest.raises(SystemExit):
        cli.main(["cache", "ls", "--cache-dir", str(tmp_path / "none")])
    assert "0 prefixes in 0 files" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
