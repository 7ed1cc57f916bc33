"""What files are called: digests of the model and of all tokens up to a place, not a word of them.

A file holds what the tokens from ``start`` to ``stop`` left behind, and is an edge of a graph: from
the place that all tokens before ``start`` name to the one that all before ``stop`` do. A chain is a
path from the place 0. Since a place's key says nothing of how one came there, chains whose borders
differ still meet wherever they have a border in common.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from hashlib import sha256
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

SUFFIX = ".safetensors"
TIP_MARK = "_tip"

#: Half of a SHA-256: nobody finds two texts with the same.
KEY_DIGITS = 32
MODEL_DIGITS = 16

_NAME = re.compile(
    rf"(?P<model>[0-9a-f]{{{MODEL_DIGITS}}})_(?P<start>\d{{1,9}})-(?P<stop>\d{{1,9}})_"
    rf"(?P<start_key>[0-9a-f]{{{KEY_DIGITS}}})_(?P<key>[0-9a-f]{{{KEY_DIGITS}}})"
    rf"(?P<tip>{TIP_MARK})?{SUFFIX}"
)


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A file's name. ``model`` is the beginning of the model's digest; ``start_key`` and ``key``
    are the places where the segment starts and stops. Units: tokens."""

    model: str
    start: int
    stop: int
    start_key: str
    key: str
    has_tip: bool

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        """None: not one of ours."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        start, stop = int(found["start"]), int(found["stop"])
        keys = found["start_key"], found["key"]
        return cls(found["model"], start, stop, *keys, found["tip"] is not None)

    def __str__(self) -> str:
        tip = TIP_MARK if self.has_tip else ""
        return f"{self.model}_{self.start}-{self.stop}_{self.start_key}_{self.key}{tip}{SUFFIX}"


class PrefixKeys:
    """The keys of the places within one sequence of tokens.

    ``digest`` is the model's: the same tokens are another place for another model.
    """

    def __init__(self, digest: str, token_ids: Sequence[int]) -> None:
        self.model = digest[:MODEL_DIGITS]
        self._bytes = array("I", token_ids).tobytes()
        self._token_bytes = array("I").itemsize
        self._hashers = {0: sha256(f"ds4trio {digest}\0".encode())}

    def key(self, place: int, before: int = 0) -> str:
        """Of the place after so many tokens. ``before``: one whose key was asked already, to go on
        from; the nearer, the cheaper."""
        if place not in self._hashers:
            hasher = self._hashers[before].copy()
            hasher.update(self._bytes[before * self._token_bytes : place * self._token_bytes])
            self._hashers[place] = hasher
        return self._hashers[place].hexdigest()[:KEY_DIGITS]

    def name(self, start: int, stop: int, *, has_tip: bool) -> SegmentName:
        """Of the segment between two places, of which the first was asked for already."""
        return SegmentName(self.model, start, stop, self.key(start), self.key(stop, start), has_tip)


def reach(
    starting_at: Callable[[str], Iterable[SegmentName]], keys: PrefixKeys, stop: int
) -> dict[int, SegmentName]:
    """All places up to ``stop`` that files lead to, each with a file that leads there: one with a
    tip if there is one, else the longest."""
    reached: dict[int, SegmentName] = {}
    places = [0]
    while places:
        place = heappop(places)
        for name in starting_at(keys.key(place)):
            if not place == name.start < name.stop <= stop:
                continue
            if keys.key(name.stop, place) != name.key:
                continue
            known = reached.get(name.stop)
            if known is None:
                heappush(places, name.stop)
            if known is None or (name.has_tip, -name.start) > (known.has_tip, -known.start):
                reached[name.stop] = name
    return reached


def path_to(place: int, reached: Mapping[int, SegmentName]) -> list[SegmentName]:
    """Files one after the other from 0 to a place that was reached."""
    path: list[SegmentName] = []
    while place > 0:
        path.append(reached[place])
        place = path[-1].start
    return path[::-1]
