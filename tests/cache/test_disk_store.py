"""Chains on disk: found again, whole, by whoever has the same tokens and the same model."""

from __future__ import annotations

import random
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from disk_rig import DENSE, Disk, chain, dense_chain, joined, same, state
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from ds4trio.cache.disk_identity import Identity
from ds4trio.cache.disk_names import SegmentName
from ds4trio.cache.disk_store import BLOCK_TOKENS
from ds4trio.cache.prefix import PrefixCache
from ds4trio.models.base import Rows, StateLayout

IDS = random.Random(0).choices(range(1000), k=5000)


def test_a_restart_finds_what_was_kept(tmp_path: Path) -> None:
    Disk(tmp_path).keep(chain(IDS, 700, 1000, tips=[700]))
    after = Disk(tmp_path)
    found = after.store.find([*IDS[:1000], 7, 8], 1)
    assert found[-1].stop == 1000
    assert [token for segment in found for token in segment.token_ids] == IDS[:1000]
    assert same(joined(found), state(IDS, 0, 1000))
    assert (after.stats.hits, after.stats.misses) == (1, 0)


def test_a_prompt_that_parts_gets_what_is_before(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.keep(chain(IDS, 700, 1000, tips=[700]))
    other = [*IDS[:900], *reversed(IDS)]
    assert disk.store.find(other, 1)[-1].stop == 700  # the last tip before they part
    assert disk.store.find(other, 701) == []
    assert disk.store.find(IDS[1:], 1) == []
    assert (disk.stats.hits, disk.stats.misses) == (1, 2)
    dense = Disk(tmp_path / "dense", kind=DENSE)
    dense.keep(dense_chain(IDS, 1000))
    assert dense.store.find(other, 1)[-1].stop == 900 // BLOCK_TOKENS * BLOCK_TOKENS


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=10), st.randoms())
def test_a_growing_chain_is_written_once(grown: list[int], rng: random.Random) -> None:
    """Whatever borders memory has put into it, and though it is offered again and again."""
    with TemporaryDirectory() as folder:
        disk = Disk(Path(folder))
        length = 0
        for more in grown:
            length += more
            borders = {rng.randrange(1, length + 1) for _ in range(3)} | {length}
            offered = chain(IDS, *sorted(borders))
            disk.store.offer(offered)
            disk.store.offer(offered)  # it is queued already
            if rng.random() < 0.7:
                disk.write()
        disk.write()
        names = [SegmentName.parse(file.name) for file in disk.files()]
        spans = sorted((name.start, name.stop) for name in names if name)
        assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
        assert spans[-1][1] == length
        assert disk.stats.written_bytes == sum(file.stat().st_size for file in disk.files())
        written = disk.stats.written_bytes
        disk.keep(chain(IDS, length))
        assert disk.stats.written_bytes == written
        assert same(joined(disk.store.find(IDS, length)), state(IDS, 0, length))


def test_sessions_share_their_beginning(tmp_path: Path) -> None:
    """Though memory has its borders elsewhere, what is written twice is less than a block."""
    disk = Disk(tmp_path, kind=DENSE)
    disk.keep(dense_chain(IDS, 1500))
    other = [*IDS[:1100], *reversed(IDS[:500])]
    disk.keep(dense_chain(other, 1100, 1600))
    rows = sum(load_file(file)["kv"].shape[1] for file in disk.files())  # the library's own reader
    assert rows == 1500 + 1600 - 1100 // BLOCK_TOKENS * BLOCK_TOKENS
    assert same(joined(disk.store.find(other, 1600)), joined(dense_chain(other, 1600)))
    assert same(joined(disk.store.find(IDS, 1500)), joined(dense_chain(IDS, 1500)))


def test_a_tip_that_comes_later_is_kept_too(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.keep(chain(IDS, 600))
    assert disk.store.find(IDS[:512], 1) == []
    disk.keep(chain(IDS, 512, 600, tips=[512]))
    assert same(joined(disk.store.find(IDS[:512], 512)), state(IDS, 0, 512))


def test_other_models_find_nothing_and_lose_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.keep(chain(IDS, 700))
    for identity in (
        Identity("c" * 64, "b" * 64, "fp32"),
        Identity("a" * 64, "c" * 64, "fp32"),
        Identity("a" * 64, "b" * 64, "bf16"),
    ):
        assert Disk(tmp_path, identity=identity).store.find(IDS, 1) == []
    assert not disk.bad()
    assert disk.store.find(IDS, 700)


def test_files_are_private(tmp_path: Path) -> None:
    """Nobody else may read them, and they say nothing of what was asked unless that is wanted."""
    secret, told = tmp_path / "secret", tmp_path / "told"
    Disk(secret).keep(chain(IDS, 300))
    disk = Disk(told, keep_token_ids=True)
    disk.keep(chain(IDS, 300))
    for path in [secret / "segments", *(secret / "segments").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    for folder, words in ((secret, None), (told, " ".join(map(str, IDS[:256])))):
        file, _ = sorted(
            (folder / "segments").glob("*.safetensors"), key=lambda f: f.stat().st_size
        )[::-1]
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        assert metadata.pop("token_ids", None) == words
        assert metadata.keys() == {
            *("format", "model", "tokenizer", "numbers", "start", "stop", "parent", "key")
        }
    assert same(joined(disk.store.find(IDS, 300)), state(IDS, 0, 300))


def test_what_failed_is_dropped(tmp_path: Path) -> None:
    """A prefix that ended a request in an error does not end the next one."""
    disk = Disk(tmp_path)
    disk.keep(chain(IDS, 700))
    disk.store.drop(IDS[:700])
    assert disk.store.find(IDS, 1) == []
    assert len(disk.bad()) == 3


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    one, other = Disk(tmp_path), Disk(tmp_path)
    one.keep(chain(IDS, 700))
    assert other.store.find(IDS, 700)
    sizes = {file: file.stat().st_size for file in one.files()}
    other.keep(chain(IDS, 700, 1000))
    assert other.stats.written_bytes == sum(
        file.stat().st_size for file in one.files() if file not in sizes
    )
    for file in one.files()[1:]:
        file.unlink()  # as if the other had made room
    assert one.store.find(IDS, 1) == []
    assert other.store.find(IDS, 1) == []


class KvStandIn:
    """A dense model's state of so many tokens."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.nbytes = 0

    def allocate(self, tokens: int) -> None:
        raise NotImplementedError

    def save(self, start: int) -> dict[str, torch.Tensor]:
        return {"kv": state(IDS, start, self.length)["kv"]}

    def restore(self, pieces: object, length: int) -> None:
        raise NotImplementedError


def test_what_memory_holds_is_not_read(tmp_path: Path) -> None:
    disk = Disk(tmp_path, kind=DENSE)
    disk.keep(dense_chain(IDS, 1000))
    first, *_ = sorted(disk.files(), key=lambda file: file.name.split("_")[1])
    assert "_0-256_" in first.name
    first.write_bytes(b"")
    cache = PrefixCache(StateLayout({"kv": Rows(1, 240)}), disk.store)
    cache.resize(1_000_000)
    cache.insert(tuple(IDS), KvStandIn(500), 500, 0)
    match = cache.find(tuple(IDS[:1200]), 1199, 0)
    assert (match.length, match.source) == (1000, "disk")
    kv = torch.cat([piece["kv"] for piece in match.pieces], -2)
    assert torch.equal(kv, state(IDS, 0, 1000)["kv"])
    assert not disk.bad()


def test_a_file_ends_where_others_will_go_on(tmp_path: Path) -> None:
    """A dense model's answer is not asked for again; its prompt may be."""
    disk = Disk(tmp_path, kind=DENSE)
    disk.store.offer(dense_chain(IDS, 700), [100, 690, 2000])
    disk.write()
    for place in (100, 256, 512, 690, 700):
        assert disk.store.find(IDS[:place], 1)[-1].stop == place
