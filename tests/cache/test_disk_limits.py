"""What the folder may take, how much is written, and who has to go."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from disk_rig import DENSE, Disk, dense_chain
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.cache import disk_store, disk_writer
from ds4trio.cache.disk_eviction import HALF_LIFE_S, least_valuable
from ds4trio.cache.disk_folder import Entry
from ds4trio.cache.disk_names import SegmentName
from ds4trio.cache.disk_writer import REFILL_S

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

IDS = random.Random(3).choices(range(1000), k=2000)
ROW = dense_chain(IDS, 1)[0].nbytes


def ids(number: int) -> list[int]:
    """Of a chain that shares nothing with the others."""
    return [number, *IDS]


def entry(
    start: int, stop: int, chain: str = "a", *, used_s: float = 0, nbytes: int = 100
) -> Entry:
    name = SegmentName(
        "m", start, stop, f"{chain}{start}" if start else "0", f"{chain}{stop}", False
    )
    return Entry(name, nbytes, int(used_s * 1e9))


def test_a_chain_loses_its_end_first() -> None:
    entries = [entry(0, 10), entry(10, 20), entry(20, 30)]
    for over_bytes, kept in ((1, 2), (100, 2), (101, 1), (300, 0)):
        assert least_valuable(entries, over_bytes) == entries[: kept - 1 if kept else None : -1]
    assert least_valuable(entries, 301) is None
    assert least_valuable(entries, 200, "a10") == entries[:0:-1]
    assert least_valuable(entries, 201, "a10") is None


def test_the_least_valuable_goes_first() -> None:
    old, new = entry(0, 10, "o", used_s=0), entry(0, 10, "n", used_s=10)
    large = entry(0, 10, "l", used_s=5, nbytes=1000)
    assert least_valuable([new, old], 1) == [old]
    assert least_valuable([new, large, old], 1) == [large]  # costs ten times as much room
    deep = [entry(0, 4096, "d", nbytes=40960), entry(4096, 4106, "d")]
    # Twice as long to compute, so it may be unused for as long as its worth takes to halve.
    assert least_valuable([*deep, entry(0, 10, "s", used_s=0.9 * HALF_LIFE_S)], 1) != deep[1:]
    assert least_valuable([*deep, entry(0, 10, "s", used_s=1.1 * HALF_LIFE_S)], 1) == deep[1:]


def test_what_nothing_leads_to_goes_before_all() -> None:
    entries = [entry(0, 10, "a"), entry(10, 20, "b", used_s=1e6), entry(20, 30, "b", used_s=1e6)]
    gone = least_valuable(entries, 1)
    assert gone is not None
    assert set(gone) == set(entries[1:])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 9)), max_size=25))
def test_no_parent_goes_before_its_children(tree: list[tuple[int, int, int]]) -> None:
    """A random forest: each entry begins where an earlier one stops, or at 0."""
    entries: list[Entry] = []
    for number, (parent, more, used) in enumerate(tree):
        start, start_key = 0, "0"
        if entries and parent:
            before = entries[-min(parent, len(entries))].name
            start, start_key = before.stop, before.key
        name = SegmentName("m", start, start + more, start_key, str(number + 1), False)
        entries.append(Entry(name, 1, used))
    for count in range(len(entries) + 1):
        gone = least_valuable(entries, count)
        assert gone is not None
        left = {e.name.key for e in entries} - {e.name.key for e in gone}
        assert len(gone) == count
        for kept in entries:
            if kept.name.key in left:
                assert kept.name.start_key in left | {"0"}


def test_the_folder_stays_within_its_budget(tmp_path: Path) -> None:
    """The least recently used goes; a chain that does not fit keeps its beginning."""
    disk = Disk(tmp_path, kind=DENSE, budget_bytes=1200 * ROW)
    for number in range(3):
        disk.clock.now += REFILL_S
        for file in disk.files():
            os.utime(file, (0, file.stat().st_mtime - 3600))
        assert number == 0 or disk.store.find(ids(0), 500)
        disk.keep(dense_chain(ids(number), 500))
        assert sum(file.stat().st_size for file in disk.files()) <= 1200 * ROW
    assert disk.store.find(ids(0), 500)
    assert disk.store.find(ids(2), 500)
    assert not disk.store.find(ids(1), 500)
    assert disk.stats.evicted_bytes > 0
    assert disk.stats.folder_bytes == sum(file.stat().st_size for file in disk.files())
    disk.clock.now += REFILL_S
    disk.keep(dense_chain(ids(4), 1900))
    assert 700 < disk.store.find(ids(4), 1)[-1].stop < 1200


def test_what_is_written_in_an_hour_is_bounded(tmp_path: Path) -> None:
    """However many different prompts there are: 137 GB in a day is what one cache wrote."""
    budget = 2000 * ROW
    disk = Disk(tmp_path, kind=DENSE, budget_bytes=budget)
    for number in range(40):
        disk.clock.now += 1
        disk.keep(dense_chain(ids(number), 400))
    assert budget / 2 < disk.stats.written_bytes < 1.1 * budget
    disk.clock.now += REFILL_S
    for number in range(40, 80):
        disk.keep(dense_chain(ids(number), 400))
    assert disk.stats.written_bytes < 2.1 * budget
    assert disk.stats.dropped_bytes > 40 * 400 * ROW


def test_a_slow_disk_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is queued is bounded; a chain's beginning is queued, so that the rest can follow."""
    monkeypatch.setattr(disk_writer, "MOST_QUEUED_BYTES", 600 * ROW)
    disk = Disk(tmp_path, kind=DENSE)
    disk.store.offer(dense_chain(IDS, 1500))  # the writer sleeps
    disk.store.offer(dense_chain(ids(1), 1500))
    assert 500 * ROW < disk.stats.dropped_bytes < 600 * ROW  # the first block of each that is
    disk.write()
    assert disk.store.find(IDS, 1)[-1].stop == 2 * disk_store.BLOCK_TOKENS
    for _ in range(2):
        disk.keep(dense_chain(IDS, 1500))
    assert disk.store.find(IDS, 1500)
    assert disk.store.find(ids(1), 1) == []


def test_what_nothing_leads_to_is_not_written(tmp_path: Path) -> None:
    """Another process made room, while the next file waited to be written."""
    disk = Disk(tmp_path, kind=DENSE)
    disk.keep(dense_chain(IDS, 200))
    disk.store.offer(dense_chain(IDS, 300))
    (before,) = disk.files()
    before.unlink()
    disk.write()
    assert disk.files() == []
    disk.keep(dense_chain(IDS, 300))
    assert disk.store.find(IDS, 300)
