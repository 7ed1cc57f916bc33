"""Answers of the Responses API, kept so that a conversation can go on from them.

Bounded by number and by bytes: the least recently used go first, and with them the conversations
that began there. With a folder each answer is a file too, and outlives the server.

Plain code: knows nothing of Trio, HTTP or how answers are made. An owner's answers exist for that
owner only.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import msgspec

from ds4trio.errors import NotFoundError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: One item of a conversation, as JSON.
Item: TypeAlias = "Mapping[str, object]"

#: What an entry costs beside its JSON, and each of its items: a guess on the safe side.
ENTRY_BYTES = 1024
ITEM_BYTES = 256

#: Statuses of an answer that a conversation can go on from.
USABLE = ("completed", "incomplete")

ID = re.compile(r"resp_[A-Za-z0-9]{1,64}")
_SUFFIX = ".json"


class StoredResponse(msgspec.Struct, frozen=True):
    """One answer that has ended. ``items`` (its input, a JSON array) and ``body`` (the response
    object) are kept as JSON, which is smaller than what it says."""

    id: str
    owner: str | None
    previous_id: str | None
    status: str
    background: bool
    items: msgspec.Raw
    body: msgspec.Raw

    def input(self) -> list[Item]:
        return [*msgspec.json.decode(self.items, type=list[dict[str, object]])]

    def output(self) -> list[Item]:
        return [*msgspec.json.decode(self.body, type=_Body).output]


class _Body(msgspec.Struct):
    """What is read of a response object."""

    output: list[dict[str, object]]


@dataclass(slots=True)
class _Entry:
    response: StoredResponse
    item_ids: list[str]
    nbytes: int


@dataclass(slots=True)
class ResponseStore:
    """``add``, ``get``, ``conversation``, ``item``, ``delete``; all return at once."""

    max_responses: int = 1000
    max_bytes: int = 64 * 1024 * 1024
    nbytes: int = field(default=0, init=False)
    #: The least recently used first.
    _entries: OrderedDict[str, _Entry] = field(default_factory=OrderedDict, init=False)
    _by_item: dict[tuple[str | None, str], str] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._entries

    def add(self, response: StoredResponse, extra_bytes: int = 0) -> list[str]:
        """Keep it, and return the ids of those that had to go: perhaps its own.

        ``extra_bytes`` are held for it elsewhere, and count.
        """
        ids = [
            item["id"]
            for item in (*response.input(), *response.output())
            if isinstance(item.get("id"), str)
        ]
        item_ids = [item_id for item_id in ids if isinstance(item_id, str)]
        size = len(response.items) + len(response.body) + ITEM_BYTES * len(item_ids)
        entry = _Entry(response, item_ids, ENTRY_BYTES + size + extra_bytes)
        self._entries[response.id] = entry
        self._by_item |= {(response.owner, item_id): response.id for item_id in item_ids}
        self.nbytes += entry.nbytes
        gone = []
        while len(self._entries) > self.max_responses or self.nbytes > self.max_bytes:
            oldest = next(iter(self._entries))
            self._forget(oldest)
            gone.append(oldest)
        return gone

    def get(self, response_id: str, owner: str | None) -> StoredResponse:
        """Raises: NotFoundError if it is not there, or another owner's."""
        if not self._has(response_id, owner):
            raise NotFoundError(f"There is no response {response_id!r}.")
        self._entries.move_to_end(response_id)
        return self._entries[response_id].response

    def conversation(self, response_id: str, owner: str | None) -> list[Item]:
        """Input and output of an answer and of all before it, in order.

        Raises: RequestError if one of them is gone, or the last has no answer.
        """
        chain: list[StoredResponse] = []
        wanted: str | None = response_id
        while wanted is not None:
            # Files may hold anything, a chain that bites its tail included.
            if not self._has(wanted, owner) or len(chain) > len(self._entries):
                raise RequestError(
                    f"Previous response with id {wanted!r} not found.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            chain.append(self.get(wanted, owner))
            wanted = chain[-1].previous_id
        if chain[0].status not in USABLE:
            raise RequestError(
                f"Previous response with id {response_id!r} is {chain[0].status}.",
                param="previous_response_id",
            )
        return [
            item for response in reversed(chain) for item in (*response.input(), *response.output())
        ]

    def item(self, item_id: str, owner: str | None) -> Item:
        """The item of this id, of whichever answer. Raises: RequestError."""
        response_id = self._by_item.get((owner, item_id))
        if response_id is None:
            raise RequestError(f"Item with id {item_id!r} not found.", param="input")
        response = self.get(response_id, owner)
        found = (*response.input(), *response.output())
        return next(item for item in found if item.get("id") == item_id)

    def delete(self, response_id: str, owner: str | None) -> None:
        """Raises: NotFoundError."""
        self.get(response_id, owner)
        self._forget(response_id)

    def _has(self, response_id: str, owner: str | None) -> bool:
        entry = self._entries.get(response_id)
        return entry is not None and entry.response.owner == owner

    def _forget(self, response_id: str) -> None:
        entry = self._entries.pop(response_id)
        self.nbytes -= entry.nbytes
        for item_id in entry.item_ids:
            key = (entry.response.owner, item_id)
            # A client may send an item that it was given again: the newest answer holds it.
            if self._by_item.get(key) == response_id:
                del self._by_item[key]


@dataclass(frozen=True, slots=True)
class ResponseFolder:
    """The files of answers, ``<id>.json``. Blocks, so runs on: any thread but Trio's."""

    path: Path

    def prepare(self) -> None:
        """Make it, and see whether it can be written to. Raises: OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        probe = self.path / f".{uuid4().hex}.part"
        try:
            probe.touch(exist_ok=False)
        finally:
            probe.unlink(missing_ok=True)

    def write(self, response: StoredResponse) -> None:
        """Whole or not at all, whenever the power fails."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f".{uuid4().hex}.part"
        try:
            with temporary.open("xb") as file:
                file.write(msgspec.json.encode(response))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._file(response.id))
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, response_ids: Sequence[str]) -> None:
        for response_id in response_ids:
            self._file(response_id).unlink(missing_ok=True)

    def load(self) -> list[StoredResponse]:
        """All that can be read, the oldest first; what cannot is left alone."""
        if not self.path.is_dir():
            return []
        files = [file for file in self.path.glob(f"*{_SUFFIX}") if ID.fullmatch(file.stem)]
        files.sort(key=lambda file: file.stat().st_mtime_ns)
        responses = []
        for file in files:
            try:
                response = msgspec.json.decode(file.read_bytes(), type=StoredResponse)
                response.input(), response.output()
            except (OSError, msgspec.MsgspecError):
                continue
            if response.id == file.stem:
                responses.append(response)
        return responses

    def _file(self, response_id: str) -> Path:
        return self.path / f"{response_id}{_SUFFIX}"
