"""Turns against their definition, in any order of events."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ds4trio.engine.fair_queue import FairQueue, Share
from ds4trio.engine.scheduler import Scheduler


@dataclass(eq=False)
class Item:
    share: Share
    prompt_left: int = 0
    paused: bool = False


#: What an owner may have at once is the owner's, not the request's.
MOST = {"ann": None, "bob": 1, "cat": 2, None: None}


class FairQueueMachine(RuleBasedStateMachine):
    """The model is the history: who came, who had a turn, who has ended, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[Item] = FairQueue()
        self.waiting: list[Item] = []
        self.running: list[Item] = []
        self.turns: list[str | None] = []

    @rule(owner=st.sampled_from(list(MOST)), priority=st.integers(0, 2))
    def come(self, owner: str | None, priority: int) -> None:
        item = Item(Share(owner, MOST[owner], priority))
        self.queue.add(item)
        self.waiting.append(item)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.waiting))
        self.queue.remove(item)
        self.waiting.remove(item)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.running))
        self.queue.end(item)
        self.running.remove(item)

    @rule()
    def turn(self) -> None:
        item = self.queue.next()
        assert item is self._by_definition()
        if item is not None:
            self.queue.start(item)
            self.waiting.remove(item)
            self.running.append(item)
            self.turns.append(item.share.owner)

    def _by_definition(self) -> Item | None:
        """One criterion after the other, each on what the one before has left."""

        def runs(owner: str | None) -> int:
            return [item.share.owner for item in self.running].count(owner)

        def last_turn(owner: str | None) -> int:
            return max((n for n, who in enumerate(self.turns, 1) if who == owner), default=0)

        left = self.waiting
        left = [i for i in left if runs(i.share.owner) < (MOST[i.share.owner] or 1000)]
        for better in (
            lambda i: -i.share.priority,
            lambda i: runs(i.share.owner),
            lambda i: last_turn(i.share.owner),
        ):
            least = min(map(better, left), default=0)
            left = [item for item in left if better(item) == least]
        return left[0] if left else None


TestFairQueue = FairQueueMachine.TestCase


@given(places=st.integers(1, 4), many=st.integers(1, 50), owners=st.integers(1, 5))
def test_one_does_not_wait_for_anothers_many(places: int, many: int, owners: int) -> None:
    """Each other owner goes before it once at most, whatever else they have waiting."""
    scheduler: Scheduler[Item] = Scheduler(max_running=places, prefill_chunk_tokens=1)
    crowd = [Item(Share(f"many-{n % owners}")) for n in range(many * owners)]
    for item in crowd:
        scheduler.add(item)
    running = scheduler.admit()
    one = Item(Share("one"))
    scheduler.add(one)
    started: list[Item] = []
    while one not in started:
        scheduler.remove(running.pop(0))
        new = scheduler.admit()
        running += new
        started += new
    assert len(started) <= owners


def test_who_waits_for_room_keeps_its_turn() -> None:
    scheduler: Scheduler[Item] = Scheduler(max_running=2, prefill_chunk_tokens=1)
    small, large, other = (Item(Share(owner)) for owner in ("ann", "ann", "bob"))
    scheduler.add(small)
    assert scheduler.admit() == [small]
    scheduler.add(large)
    assert scheduler.admit(lambda item: item is not large) == []
    scheduler.add(other)
    assert scheduler.admit() == [], "nobody has gone yet"
    scheduler.remove(small)
    assert scheduler.admit() == [large, other]
