"""How much of prompts a step computes, on machines whose speed is known by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING

from engine_rig import job, read_all
from hypothesis import example, given
from hypothesis import strategies as st

from ds4trio.engine import worker
from ds4trio.engine.engine import open_engine
from ds4trio.engine.fair_queue import Share
from ds4trio.engine.pace import LEAST_TOKENS, Pace
from ds4trio.engine.scheduler import Plan, Scheduler
from ds4trio.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    import torch

    from ds4trio.models.base import Chunk

TARGET_S = 0.05
MOST = 512


@dataclass(frozen=True)
class Machine:
    """What a step costs it."""

    fixed_s: float
    decode_s: float
    token_s: float

    def seconds(self, decodes: int, prompt_tokens: int) -> float:
        return self.fixed_s + self.decode_s * decodes + self.token_s * prompt_tokens


@dataclass(eq=False)
class Item:
    prompt_left: int
    paused: bool = False
    share: Share = field(default_factory=Share)


#: 16 tokens take as long as no tokens do, 100 tokens take 50 ms, 8 decodes alone 18 ms.
MACHINE = Machine(0.010, 0.001, 0.0005)

machines = st.builds(
    Machine, st.floats(0.0001, 0.1), st.floats(0, 0.01), st.floats(0.00001, 0.02)
)  # fmt: skip


def learn(pace: Pace, machine: Machine, steps: int = 60) -> None:
    """Steps of all kinds, one after the other."""
    for _ in range(steps):
        for decodes in (0, 1, 8):
            tokens = pace.prompt_tokens(decodes, alone=not decodes)
            pace.took(decodes, tokens, machine.seconds(decodes, tokens))
            if decodes:
                pace.took(decodes, 0, machine.seconds(decodes, 0))


def tokens_per_s(steps: Sequence[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in steps) / sum(seconds for _, seconds in steps)


def simulate(scheduler: Scheduler[Item], machine: Machine, steps: int) -> list[tuple[int, float]]:
    """Prompt tokens and seconds of each step."""
    took = []
    for _ in range(steps):
        plan = scheduler.plan()
        tokens = sum(tokens for _, tokens in plan.prefills)
        for item, chunk in plan.prefills:
            item.prompt_left -= chunk
        took.append((tokens, machine.seconds(len(plan.decodes), tokens)))
        scheduler.took(plan, took[-1][1])
    return took


def test_by_hand() -> None:
    """Alone, a step may take 100 ms: (100 - 10) / 0.5 = 180 tokens. Beside 8 decodes, prompts may
    add 50 ms: 100 tokens, in steps of 68 ms. That is 1800 and 1470 tokens/s: more than four fifths.
    """
    scheduler: Scheduler[Item] = Scheduler(
        max_running=9, prefill_chunk_tokens=MOST, prefill_target_s=TARGET_S
    )
    decodes = [Item(0) for _ in range(8)]
    for item in decodes:
        scheduler.add(item)
    scheduler.admit()
    assert all(tokens == 0 for tokens, _ in simulate(scheduler, MACHINE, 20))
    prompt = Item(10**6)
    scheduler.add(prompt)
    scheduler.admit()
    beside = simulate(scheduler, MACHINE, 30)
    assert beside[0][0] == LEAST_TOKENS  # nothing is known of prompts yet
    assert all(96 - 8 <= tokens <= 100 for tokens, _ in beside[15:])
    assert all(seconds <= 0.018 + TARGET_S + 1e-9 for _, seconds in beside)
    for item in decodes:
        scheduler.remove(item)
    alone = simulate(scheduler, MACHINE, 30)
    assert all(176 - 8 <= tokens <= 180 for tokens, _ in alone[15:])
    assert all(seconds <= 2 * TARGET_S + 1e-9 for _, seconds in alone)
    assert tokens_per_s(beside[15:]) >= 0.8 * tokens_per_s(alone[15:])
    # Somebody waits for a place: 100 tokens again.
    for _ in range(9):
        scheduler.add(Item(1))
    scheduler.admit()
    assert scheduler.waiting
    assert scheduler.plan().prefills[0][1] <= 100


@given(machine=machines, most=st.integers(1, 1000), decodes=st.sampled_from([0, 1, 8]))
@example(Machine(1.0, 0.1, 0.1), 512, 8)
def test_prompts_take_what_they_may(machine: Machine, most: int, decodes: int) -> None:
    """But never less than a few tokens, so that the oldest prompt advances on any machine."""
    pace = Pace(TARGET_S, most)
    learn(pace, machine)
    tokens = pace.prompt_tokens(decodes, alone=not decodes)
    least = min(LEAST_TOKENS, most)
    assert least <= tokens <= most
    may_s = max(TARGET_S, machine.seconds(decodes, 0))
    if not decodes:
        may_s = max(may_s, 2 * TARGET_S - machine.fixed_s)
    assert tokens == least or tokens * machine.token_s <= may_s * 1.05
    # Nor much less than they may, by more than a grain.
    assert tokens == most or (tokens + 8) * machine.token_s >= may_s * 0.9


@given(
    machine=machines,
    most=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.integers(0, 16), st.integers(0, 1000), st.floats(0, 100))),
    alone=st.booleans(),
)
def test_no_measurement_breaks_it(
    machine: Machine, most: int, steps: list[tuple[int, int, float]], alone: bool
) -> None:
    """Whatever was measured, a few steps as they should be and it is right again."""
    pace = Pace(TARGET_S, most)
    for decodes, tokens, seconds in steps:
        if decodes or tokens:
            pace.took(decodes, tokens, seconds)
            assert min(LEAST_TOKENS, most) <= pace.prompt_tokens(decodes, alone=alone) <= most
    learn(pace, machine, steps=200)
    tokens = pace.prompt_tokens(1, alone=False)
    may_s = max(TARGET_S, machine.seconds(1, 0))
    assert tokens <= LEAST_TOKENS or tokens * machine.token_s <= may_s * 1.05


def test_one_late_step_is_half_believed() -> None:
    """A third of what it took more is taken for the machine's own doing, up to as much again as
    was expected: 50 ms of prompt then seem to be 50 + 0.3 * 68 ms, so 100 tokens become 71.
    """
    pace = Pace(TARGET_S, MOST)
    learn(pace, MACHINE)
    tokens = pace.prompt_tokens(8, alone=False)
    assert tokens in (96, 88)
    pace.took(8, tokens, 10.0)
    assert pace.prompt_tokens(8, alone=False) in (64, 72)
    for _ in range(10):
        tokens = pace.prompt_tokens(8, alone=False)
        pace.took(8, tokens, MACHINE.seconds(8, tokens))
    assert pace.prompt_tokens(8, alone=False) >= 88


def test_a_machine_that_becomes_slow() -> None:
    """Three times slower from one step to the next, while prompts never pause: within five steps
    a step takes no longer than decodes, and once more what they or the target take.
    """
    pace = Pace(TARGET_S, MOST)
    learn(pace, MACHINE)
    slow = Machine(0.030, 0.003, 0.0015)
    for _ in range(5):
        tokens = pace.prompt_tokens(8, alone=False)
        pace.took(8, tokens, slow.seconds(8, tokens))
    assert slow.seconds(8, pace.prompt_tokens(8, alone=False)) <= 2 * slow.seconds(8, 0)


def test_without_a_target_chunks_are_fixed() -> None:
    pace = Pace(0.0, 64)
    for seconds in (0.0, 0.001, 100.0):
        pace.took(3, 64, seconds)
        assert pace.prompt_tokens(0, alone=True) == pace.prompt_tokens(3, alone=False) == 64


async def test_the_worker_measures_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with a clock of its own, which only forwards advance."""
    now = 0.0
    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: now))

    class Timed(ScriptedModel):
        def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
            nonlocal now
            tokens = sum(len(chunk.token_ids) for chunk in chunks)
            now += MACHINE.seconds(0, tokens)
            return super().forward(chunks)

    model = Timed()
    async with (
        open_engine(
            lambda: model, prefill_chunk_tokens=MOST, prefill_target_s=TARGET_S, threads=1
        ) as engine,
        engine.submit(job(1, prompt_tokens=3000, max_tokens=2)) as stream,
    ):
        await read_all(stream)
    chunks = [len(row.token_ids) for (row,) in model.forwards]
    assert chunks[0] == LEAST_TOKENS
    assert 160 <= max(chunks) <= 184  # (100 - 10) / 0.5, and what was not yet known of the machine
    assert all(later >= chunk for chunk, later in pairwise(chunks[:-3]))
    assert sum(chunks) == 3000 + 1


def test_plans_are_told_apart() -> None:
    """What the scheduler says of a step is what was in it."""
    scheduler: Scheduler[Item] = Scheduler(
        max_running=4, prefill_chunk_tokens=MOST, prefill_target_s=TARGET_S
    )
    scheduler.took(Plan([], [(Item(9), 10), (Item(9), 10)]), 0.02)
    # Half of 20 ms for 20 tokens: 0.5 ms each.
    scheduler.add(Item(1000))
    scheduler.add(Item(0))
    scheduler.admit()
    (_, tokens), *_ = scheduler.plan().prefills
    assert tokens == 96
