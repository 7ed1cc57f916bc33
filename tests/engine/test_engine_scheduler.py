"""The policy against its own rules, in any order of events."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ds4trio.engine.fair_queue import Share
from ds4trio.engine.scheduler import Scheduler


@dataclass(eq=False)
class Item:
    prompt_left: int
    paused: bool = False
    share: Share = field(default_factory=Share)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, removes, pauses and steps; a list for each room is the model."""

    @initialize(places=st.integers(1, 4), chunk=st.integers(1, 9))
    def start(self, places: int, chunk: int) -> None:
        self.places, self.chunk = places, chunk
        self.scheduler: Scheduler[Item] = Scheduler(max_running=places, prefill_chunk_tokens=chunk)
        self.queue: list[Item] = []
        self.running: list[Item] = []

    @rule(prompt=st.integers(1, 30))
    def add(self, prompt: int) -> None:
        item = Item(prompt)
        self.scheduler.add(item)
        self.queue.append(item)

    @rule()
    def admit(self) -> None:
        free = self.places - len(self.running)
        admitted = self.scheduler.admit()
        assert admitted == self.queue[:free]
        self.running += admitted
        del self.queue[:free]

    @precondition(lambda self: self.queue or self.running)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.queue + self.running))
        self.scheduler.remove(item)
        (self.queue if item in self.queue else self.running).remove(item)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), paused=st.booleans())
    def pause(self, data: st.DataObject, paused: bool) -> None:
        data.draw(st.sampled_from(self.running)).paused = paused

    @rule()
    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan.decodes == [i for i in self.running if not i.prompt_left and not i.paused]
        unread = [i for i in self.running if i.prompt_left]
        budget = self.chunk
        expected = []
        for item in unread:
            if budget:
                expected.append((item, min(item.prompt_left, budget)))
                budget -= expected[-1][1]
        assert plan.prefills == expected
        assert list(plan) == plan.decodes + [item for item, _ in expected]
        for item, tokens in plan.prefills:
            item.prompt_left -= tokens

    @invariant()
    def agrees(self) -> None:
        assert self.scheduler.waiting == self.queue
        assert self.scheduler.running == self.running
        assert len(self.running) <= self.places
        can_admit = bool(self.queue) and len(self.running) < self.places
        assert self.scheduler.has_work == (bool(self.scheduler.plan()) or can_admit)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=30)
