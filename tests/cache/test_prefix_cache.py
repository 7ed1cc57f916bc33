"""The prefix cache against a simple model of what it was told: contents, bytes, and who goes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from toy_states import TIP_BYTES, ToyState, layout

from ds4trio.cache.prefix import Match, PrefixCache
from ds4trio.cache.worth import HALF_LIFE_S

HOUR = 3600.0
PLENTY = 1 << 30

#: Few letters, so that prompts begin alike, part, and meet again.
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=24).map(tuple)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


class CacheMachine(RuleBasedStateMachine):
    """Anything is inserted, looked for and squeezed; a list of all that was ever told is the model.

    As long as nothing was dropped, the cache must know as much as that list; and never more.
    """

    @initialize(tips=st.booleans())
    def start(self, tips: bool) -> None:
        self.tips = tips
        self.cache = PrefixCache(layout(tips=tips))
        self.most_bytes = 0
        self.told: list[tuple[int, ...]] = []
        self.at = 0.0

    @rule(ids=PROMPTS, longer=st.integers(0, 99))
    def insert(self, ids: tuple[int, ...], longer: int) -> None:
        self.at += 1
        kept = self.cache.insert(ids, ToyState(ids, tips=self.tips), len(ids) + longer, self.at)
        if kept:
            assert self.cache.known(ids) == len(ids)
            self.told.append(ids)

    @rule(ids=PROMPTS, most=st.integers(0, 24))
    def find(self, ids: tuple[int, ...], most: int) -> None:
        self.at += 1
        match = self.cache.find(ids, most, self.at)
        known = [common(ids[:most], told) for told in self.told]
        if self.tips:
            known = [length for length, told in zip(known, self.told, strict=True)
                     if length == len(told)]  # fmt: skip
        expected = max(known, default=0)
        if any(self.cache.evictions.values()):
            assert match.length <= expected
        else:
            assert match.length == expected
        assert (
            match.length
            <= match.shared
            <= max((common(ids[:most], told) for told in self.told), default=0)
        )
        assert match.source == ("memory" if match.length else None)
        restored = ToyState(tips=self.tips)
        if match.length:
            restored.restore(match.pieces, match.length)
        assert tuple(restored.token_ids) == ids[: match.length]

    @rule(most_bytes=st.integers(0, 2000) | st.just(PLENTY))
    def resize(self, most_bytes: int) -> None:
        self.cache.resize(most_bytes)
        self.most_bytes = most_bytes

    @invariant()
    def holds_what_it_says(self) -> None:
        nodes = list(self.cache._tree)
        assert self.cache.nbytes == sum(node.segment.nbytes for node in nodes) <= self.most_bytes
        for node in nodes:
            segment, parent = node.segment, node.parent
            assert parent is not None
            assert segment.start == parent.segment.stop
            assert segment.stop - segment.start == len(segment.token_ids) > 0
            assert parent.children[segment.token_ids[0]] is node
            assert all(tensor.is_contiguous() for tensor in segment.tensors.values())


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=25)


def filled(most_bytes: int, *, tips: bool = False) -> PrefixCache:
    cache = PrefixCache(layout(tips=tips))
    cache.resize(most_bytes)
    return cache


def compute(cache: PrefixCache, ids: tuple[int, ...], at: float, *, tips: bool = False) -> Match:
    """What a sequence does: restores, computes in pieces of 100, leaves."""
    match = cache.find(ids, len(ids) - 1, at)
    for done in [*range(match.length + 100, len(ids), 100), len(ids)]:
        cache.insert(ids, ToyState(ids[:done], tips=tips), len(ids), at)
    return match


def session(number: int, tokens: int) -> tuple[int, ...]:
    return (number,) * tokens


@pytest.mark.parametrize("tips", [False, True])
def test_short_requests_do_not_evict_a_long_conversation(tips: bool) -> None:
    """The conversation fills the memory; a hundred helpers later it is still there, whole."""
    long = session(1, 6000)
    cache = filled(layout(tips=tips).nbytes(6000) + 60 * TIP_BYTES * tips, tips=tips)
    compute(cache, long, at=0.0, tips=tips)
    assert cache.known(long) == 6000
    for helper in range(100):
        compute(cache, session(2 + helper, 100), at=6.0 * helper, tips=tips)
    assert cache.known(long) == 6000


def test_but_a_newer_long_one_does_and_a_forgotten_one_goes() -> None:
    cache = filled(layout(tips=False).nbytes(6000))
    compute(cache, session(1, 6000), at=0.0)
    compute(cache, session(2, 6000), at=60.0)
    assert cache.known(session(2, 6000)) == 6000
    assert cache.known(session(1, 6000)) == 0
    for helper in range(10):
        compute(cache, session(10 + helper, 100), at=60.0 + 6 * HALF_LIFE_S)
    assert all(cache.known(session(10 + helper, 100)) == 100 for helper in range(10))
    assert cache.known(session(2, 6000)) == 5000


def test_hits_count() -> None:
    """Of two prompts of one length, the one that was asked for again stays, though it is older."""
    popular, other, third = session(1, 500), session(2, 500), session(3, 500)
    cache = filled(layout(tips=False).nbytes(1000))
    compute(cache, popular, at=0.0)
    compute(cache, popular, at=1.0)
    compute(cache, other, at=2.0)
    compute(cache, third, at=100.0)
    assert [cache.known(ids) for ids in (popular, other, third)] == [500, 0, 500]


def test_what_others_hang_on_stays() -> None:
    """Room is made of the ends of conversations, never of what they have in common."""
    system = session(0, 400)
    one, other = system + session(1, 200), system + session(2, 200)
    cache = filled(layout(tips=False).nbytes(800))
    compute(cache, one, at=0.0)
    compute(cache, other, at=HOUR)
    cache.resize(layout(tips=False).nbytes(500))
    assert (cache.known(one), cache.known(other)) == (400, 500)
    assert cache.evictions == {"worth": 0, "running": 3}


def test_a_tip_alone_is_dropped_where_others_need_the_rows() -> None:
    ids = session(1, 100)
    cache = filled(PLENTY, tips=True)
    cache.insert(ids, ToyState(ids[:50], tips=True), 100, 0.0)
    cache.insert(ids, ToyState(ids, tips=True), 100, 5 * HOUR)
    cache.resize(cache.nbytes - 1)
    assert cache.known(ids) == 100
    assert cache.known(ids[:99]) == 0
    match = cache.find(ids, 99, 5 * HOUR)
    assert (match.length, match.shared) == (0, 99)


def test_what_is_kept_shares_no_memory_with_what_is_dropped() -> None:
    """A segment that was split in two frees memory when one of them goes."""
    ids = session(1, 100)
    cache = filled(PLENTY)
    cache.insert(ids, ToyState(ids), 100, 0.0)
    other = (*ids[:40], 2)
    cache.insert(other, ToyState(other), 100, 0.0)
    storages = [
        tensor.untyped_storage().nbytes() for node in cache._tree
        for tensor in node.segment.tensors.values()
    ]  # fmt: skip
    assert sum(storages) == cache.nbytes
