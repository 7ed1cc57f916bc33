"""The store of responses against a model of it, its folder, and the log of events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ds4trio.config import Settings
from ds4trio.errors import ConfigError, NotFoundError, RequestError
from ds4trio.protocols.wire import WireEvent
from ds4trio.server.event_log import EVENT_BYTES, EventLog
from ds4trio.server.response_store import (
    ENTRY_BYTES,
    ResponseFolder,
    ResponseStore,
    StoredResponse,
)
from ds4trio.server.responses import Responses
from ds4trio.server.serve import make_state

if TYPE_CHECKING:
    from pathlib import Path

OWNERS = [None, "a", "b"]


def stored(
    number: int,
    owner: str | None = None,
    previous_id: str | None = None,
    status: str = "completed",
    padding: int = 0,
) -> StoredResponse:
    said = {"id": f"in_{number}", "type": "message", "role": "user", "content": "x" * padding}
    told = {"id": f"out_{number}", "type": "message", "role": "assistant", "content": []}
    return StoredResponse(
        id=f"resp_{number}",
        owner=owner,
        previous_id=previous_id,
        status=status,
        background=False,
        items=msgspec.Raw(json.dumps([said]).encode()),
        body=msgspec.Raw(json.dumps({"output": [told]}).encode()),
    )


def item_ids(items: list[Any]) -> list[str]:
    return [item["id"] for item in items]


class Store(RuleBasedStateMachine):
    """The model keeps everything, in the order of last use, and says what may still be there."""

    def __init__(self) -> None:
        super().__init__()
        self.store = ResponseStore(max_responses=4, max_bytes=4 * ENTRY_BYTES + 4000)
        self.kept: dict[str, StoredResponse] = {}
        self.number = 0

    def used(self, response_id: str) -> None:
        self.kept[response_id] = self.kept.pop(response_id)

    def theirs(self, response_id: str, owner: str | None) -> bool:
        return response_id in self.kept and self.kept[response_id].owner == owner

    @rule(
        owner=st.sampled_from(OWNERS),
        previous=st.integers(0, 8),
        status=st.sampled_from(["completed", "incomplete", "failed", "cancelled"]),
        padding=st.sampled_from([0, 0, 0, 3000, 9000]),
    )
    def add(self, owner: str | None, previous: int, status: str, padding: int) -> None:
        # Number 8 is never there.
        previous_id = f"resp_{previous}" if self.number and previous < self.number else None
        response = stored(self.number, owner, previous_id, status, padding)
        self.number += 1
        self.kept[response.id] = response
        for gone in self.store.add(response):
            # Least recently used first, and no more than had to go.
            assert gone == next(iter(self.kept))
            del self.kept[gone]

    @rule(number=st.integers(0, 8), owner=st.sampled_from(OWNERS))
    def get(self, number: int, owner: str | None) -> None:
        response_id = f"resp_{number}"
        if self.theirs(response_id, owner):
            assert self.store.get(response_id, owner) == self.kept[response_id]
            self.used(response_id)
        else:
            with pytest.raises(NotFoundError):
                self.store.get(response_id, owner)

    @rule(number=st.integers(0, 8), owner=st.sampled_from(OWNERS))
    def conversation(self, number: int, owner: str | None) -> None:
        chain: list[str] = []
        wanted: str | None = f"resp_{number}"
        while wanted is not None and self.theirs(wanted, owner):
            chain.append(wanted)
            self.used(wanted)
            wanted = self.kept[wanted].previous_id
        usable = bool(chain) and self.kept[chain[0]].status in ("completed", "incomplete")
        if wanted is None and usable:
            found = self.store.conversation(f"resp_{number}", owner)
            numbers = [response_id.removeprefix("resp_") for response_id in reversed(chain)]
            assert item_ids(found) == [f"{side}_{n}" for n in numbers for side in ("in", "out")]
        else:
            with pytest.raises(RequestError):
                self.store.conversation(f"resp_{number}", owner)

    @rule(number=st.integers(0, 8), owner=st.sampled_from(OWNERS))
    def item(self, number: int, owner: str | None) -> None:
        if self.theirs(f"resp_{number}", owner):
            assert self.store.item(f"out_{number}", owner)["id"] == f"out_{number}"
            self.used(f"resp_{number}")
        else:
            with pytest.raises(RequestError):
                self.store.item(f"out_{number}", owner)

    @rule(number=st.integers(0, 8), owner=st.sampled_from(OWNERS))
    def delete(self, number: int, owner: str | None) -> None:
        response_id = f"resp_{number}"
        if self.theirs(response_id, owner):
            self.store.delete(response_id, owner)
            del self.kept[response_id]
        else:
            with pytest.raises(NotFoundError):
                self.store.delete(response_id, owner)

    @invariant()
    def holds_what_it_counts(self) -> None:
        assert len(self.store) == len(self.kept) <= 4
        assert all(response_id in self.store for response_id in self.kept)
        assert self.store.nbytes <= self.store.max_bytes
        assert bool(self.store.nbytes) == bool(self.kept)
        assert len(self.store._by_item) == 2 * len(self.kept)


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_one_that_is_too_large_is_not_kept() -> None:
    store = ResponseStore(max_bytes=ENTRY_BYTES + 2000)
    assert store.add(stored(0)) == []
    assert store.add(stored(1, padding=3000)) == ["resp_0", "resp_1"]
    assert store.nbytes == 0


def test_what_is_held_elsewhere_counts() -> None:
    store = ResponseStore(max_bytes=10_000)
    assert store.add(stored(0), extra_bytes=10_000) == ["resp_0"]


def test_an_item_given_back_is_the_newest_answers_own() -> None:
    store = ResponseStore()
    store.add(stored(0))
    store.add(msgspec.structs.replace(stored(0), id="resp_1"))
    store.delete("resp_0", None)
    assert store.item("in_0", None)["id"] == "in_0"


def test_a_chain_that_bites_its_tail_is_not_found() -> None:
    store = ResponseStore()
    store.add(stored(0, previous_id="resp_1"))
    store.add(stored(1, previous_id="resp_0"))
    with pytest.raises(RequestError, match="not found"):
        store.conversation("resp_0", None)


# --- the folder ---


def test_a_folder_gives_back_what_was_written(tmp_path: Path) -> None:
    folder = ResponseFolder(tmp_path / "new" / "folder")
    assert folder.load() == []
    first, second = stored(0, "a"), stored(1, None, "resp_0")
    folder.write(first)
    folder.write(second)
    folder.write(first)
    assert sorted(folder.load(), key=lambda response: response.id) == [first, second]
    folder.remove(["resp_0", "resp_never"])
    assert folder.load() == [second]
    assert [file.name for file in folder.path.iterdir()] == ["resp_1.json"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("resp_9.json", b"{"),
        ("resp_9.json", b"\xff"),
        ("resp_9.json", b"{}"),
        ("resp_9.json", msgspec.json.encode(stored(8))),
        ("resp_9.json", msgspec.json.encode(stored(9)).replace(b'"output"', b'"out"')),
        ("resp_9.json", msgspec.json.encode(stored(9))[:-10]),
        (
            "resp_9.json",
            msgspec.json.encode(
                msgspec.structs.replace(stored(9), body=msgspec.Raw(b'{"output": null}'))
            ),
        ),
        (
            "resp_9.json",
            msgspec.json.encode(
                msgspec.structs.replace(stored(9), body=msgspec.Raw(b'{"output": [1]}'))
            ),
        ),
        ("notes.json", b"{}"),
        (".1234.part", msgspec.json.encode(stored(9))),
    ],
)
def test_what_cannot_be_read_is_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    folder = ResponseFolder(tmp_path)
    folder.write(stored(0))
    (tmp_path / name).write_bytes(content)
    assert folder.load() == [stored(0)]
    assert (tmp_path / name).read_bytes() == content


def test_a_folder_with_more_than_is_kept_is_cut_to_that(tmp_path: Path) -> None:
    folder = ResponseFolder(tmp_path)
    for number in range(5):
        folder.write(stored(number))
    responses = Responses(ResponseStore(max_responses=2), folder)
    assert len(responses.store) == len(folder.load()) == 2
    assert all(response.id in responses.store for response in folder.load())


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ResponseFolder(tmp_path)
    folder.write(stored(0))

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        folder.write(stored(0, padding=100))
    assert folder.load() == [stored(0)]
    assert len(list(tmp_path.iterdir())) == 1


# --- the log of events ---


def word(number: int, size: int = 10) -> WireEvent:
    return WireEvent(b"%d" % number + b" " * (size - len(str(number))))


async def test_a_reader_waits_for_more_and_for_the_end() -> None:
    log = EventLog()
    read: list[tuple[list[WireEvent], bool]] = []

    async def follow() -> None:
        after = -1
        while not (read and read[-1][1]):
            read.append(await log.read(after))
            after += len(read[-1][0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        log.append([word(0), word(1)])
        await trio.testing.wait_all_tasks_blocked()
        log.append([word(2)])
        await trio.testing.wait_all_tasks_blocked()
        log.close()
    assert read == [([word(0), word(1)], False), ([word(2)], False), ([], True)]
    assert await log.read(0) == ([word(1), word(2)], True)
    assert await log.read(7) == ([], True)


async def test_a_log_is_bounded_and_says_what_is_gone() -> None:
    log = EventLog(max_bytes=3 * (EVENT_BYTES + 10))
    for number in range(10):
        log.append([word(number)])
    assert log.nbytes == 3 * (EVENT_BYTES + 10)
    assert (await log.read(6))[0] == [word(7), word(8), word(9)]
    with pytest.raises(RequestError) as caught:
        await log.read(5)
    assert caught.value.param == "starting_after"
    with pytest.raises(RequestError):
        log.check(-1)


@pytest.mark.parametrize("where", ["file", "file/within"])
def test_a_folder_that_cannot_be_used_is_an_error_at_the_start(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^responses_dir: .*"):
        make_state(Settings(responses_dir=tmp_path / where))
