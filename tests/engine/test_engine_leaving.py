"""Whoever leaves takes their work with them: in every phase, by every way out.

The worker is held inside a forward while somebody leaves, so each phase is hit exactly.
"""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import pytest
import trio
import trio.testing
from engine_rig import Rig, job, open_rig, read_all, read_tokens, token_ids

from ds4trio.engine.job import EndReason, EngineRequest, TokensEnded
from ds4trio.testing import ALPHABET, ScriptedModel, StepGate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ds4trio.engine.stream import TokenStream

NEIGHBOUR, VICTIM, NEXT = 65, 66, 67
CHUNK = 8
#: Forward in which somebody leaves: 1 is the neighbour's own; 2, 3 and 4 compute the victim's
#: prompt of 20 tokens, of which 4 is the last piece; from 5 on it decodes.
PHASES = {"queue": 1, "first chunk": 2, "chunk": 3, "last chunk": 4, "decode": 5, "later": 11}


class Boom(Exception):
    """Of the reader's own."""


async def leave_by_cancel(stream: TokenStream, go: trio.Event) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, go, scope)
            while True:
                await stream.receive()
    await trio.lowlevel.checkpoint()


async def cancel_when(go: trio.Event, scope: trio.CancelScope) -> None:
    await go.wait()
    scope.cancel()


async def leave_quietly(stream: TokenStream, go: trio.Event) -> None:
    await go.wait()


async def leave_with_an_error(stream: TokenStream, go: trio.Event) -> None:
    await go.wait()
    raise Boom


Way: TypeAlias = "Callable[[TokenStream, trio.Event], Awaitable[None]]"
WAYS: list[Way] = [leave_by_cancel, leave_quietly, leave_with_an_error]


async def be_victim(rig: Rig, way: Way, go: trio.Event, task_status: trio.TaskStatus[None]) -> None:
    stream = None
    try:
        async with rig.engine.submit(job(VICTIM, 20, max_tokens=1000)) as stream:
            task_status.started()
            await way(stream, go)
    except Boom:
        pass
    assert stream is not None
    assert stream.report is not None
    assert stream.report.release_s is not None
    assert stream.report.release_s >= 0


async def be_reader(rig: Rig, request: EngineRequest, task_status: trio.TaskStatus[None]) -> None:
    async with rig.engine.submit(request) as stream:
        task_status.started()
        tokens, ended = await read_all(stream)
    assert ended.reason is EndReason.LENGTH
    assert tokens == alphabet_from(len(request.token_ids), request.max_tokens or 0)


def alphabet_from(position: int, count: int) -> list[int]:
    return [ALPHABET[(position + n) % len(ALPHABET)] for n in range(count)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", PHASES)
async def test_leaving_in_every_phase(phase: str, way: Way) -> None:
    forward = PHASES[phase]
    async with (
        open_rig(gated=True, max_running=2, prefill_chunk_tokens=CHUNK) as rig,
        trio.open_nursery() as nursery,
    ):
        go = trio.Event()
        await nursery.start(be_reader, rig, job(NEIGHBOUR, max_tokens=30))
        await rig.gate.reached(1)
        await nursery.start(be_victim, rig, way, go)
        await nursery.start(be_reader, rig, job(NEXT))
        rig.gate.release(forward - 1)
        await rig.gate.reached(forward)
        go.set()
        await trio.testing.wait_all_tasks_blocked()  # the flag is set
        rig.gate.open()
    forwards = rig.model.forwards
    assert len(rig.model.rows_of(VICTIM)) == forward - 1  # not one more after the flag
    next_start = next(n for n, rows in enumerate(forwards, 1) if rows[-1].first_id == NEXT)
    assert next_start == forward + 1
    stats = rig.engine.stats
    assert stats.wasted_generated_tokens == (forward >= 5)
    assert stats.wasted_prompt_tokens == {2: 8, 3: 8, 4: 4}.get(forward, 0)
    assert stats.prompt_tokens == 3 + 3 + min(20, (forward - 1) * CHUNK)
    assert stats.generated_tokens == 30 + 20 + max(0, forward - 4)
    assert stats.steps == len(forwards)
    assert rig.counts == (0, 0, 0)


async def test_leaving_while_paused() -> None:
    async with open_rig(max_unread_tokens=4) as rig:
        async with rig.engine.submit(job(VICTIM)):
            await read_one(rig, job(NEIGHBOUR, max_tokens=30))
            # Of one token the worker is not told that it was taken: it has nothing more to hear.
            await read_one(rig, job(NEXT, max_tokens=1))
        # The worker was idle, and woke up to let go.
        assert len(rig.model.rows_of(VICTIM)) == 4
        assert rig.counts == (0, 0, 0)
        assert rig.engine.stats.wasted_generated_tokens == 0


async def read_one(rig: Rig, request: EngineRequest) -> None:
    async with rig.engine.submit(request) as stream:
        tokens, _ = await read_all(stream)
    assert tokens == alphabet_from(len(request.token_ids), request.max_tokens or 0)


@pytest.mark.parametrize("read", [True, False])
async def test_leaving_after_the_end_wastes_nothing(read: bool) -> None:
    async with open_rig() as rig:
        async with rig.engine.submit(job(VICTIM)) as stream:
            if read:
                await read_all(stream)
            else:
                await read_one(rig, job(NEIGHBOUR, max_tokens=40))
            stream.stop()
        assert stream.report is not None
        assert stream.report.release_s is None
        assert stream.report.generated_tokens == 20
        assert rig.counts == (0, 0, 0)
        assert rig.engine.stats.wasted_generated_tokens == 0


async def test_leaving_before_the_last_token_is_sampled() -> None:
    async with open_rig(gated=True) as rig:
        async with (
            rig.engine.submit(job(VICTIM, max_tokens=1)) as stream,
            opening_gate_later(rig.gate),
        ):
            await rig.gate.reached(1)
        assert stream.report is not None
        assert stream.report.generated_tokens == 0
        assert stream.report.wasted_prompt_tokens == 3
        assert rig.counts == (0, 0, 0)


@asynccontextmanager
async def opening_gate_later(gate: StepGate) -> AsyncIterator[None]:
    """After the block, opens the gate once what surrounds it waits for the worker."""
    yield
    trio.lowlevel.spawn_system_task(open_when_blocked, gate)


async def test_stop_completes_the_answer() -> None:
    async with open_rig(gated=True) as rig:
        async with rig.engine.submit(job(VICTIM, max_tokens=1000)) as stream:
            rig.gate.release(5)
            events = await read_tokens(stream, 5)
            await rig.gate.reached(6)
            stream.stop()
            stream.stop()
            rig.gate.open()
            rest, ended = await read_all(stream)
        assert token_ids(events) + rest == alphabet_from(3, 5)
        assert ended.reason is EndReason.STOPPED
        assert ended.report.release_s is None
        assert (ended.report.wasted_generated_tokens, ended.report.generated_tokens) == (0, 5)
        assert len(rig.model.forwards) == 6
        assert rig.engine.stats.wasted_generated_tokens == 0
        assert rig.counts == (0, 0, 0)


async def test_stop_and_leave_is_still_complete() -> None:
    async with open_rig(gated=True) as rig:
        async with rig.engine.submit(job(VICTIM)) as stream, opening_gate_later(rig.gate):
            rig.gate.release(2)
            await read_tokens(stream, 2)
            await rig.gate.reached(3)
            stream.stop()
        assert stream.report is not None
        assert stream.report.release_s is None
        assert rig.engine.stats.wasted_generated_tokens == 0
        assert len(rig.model.forwards) == 3


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope when a task has been suspended so many times since ``watch``."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._task: trio.lowlevel.Task | None = None
        self._scope: trio.CancelScope | None = None

    def watch(self, scope: trio.CancelScope) -> None:
        self._task = trio.lowlevel.current_task()
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task and self._scope is not None:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def test_cancelled_at_every_checkpoint_of_submit_receive_and_leave() -> None:
    async with open_rig() as rig:
        for count in range(1, 1000):
            instrument = CancelAtStep(count)
            trio.lowlevel.add_instrument(instrument)
            entered = False
            with trio.CancelScope() as scope:
                instrument.watch(scope)
                async with rig.engine.submit(job(VICTIM, max_tokens=5)) as stream:
                    entered = True
                    await read_all(stream)
            trio.lowlevel.remove_instrument(instrument)
            assert rig.counts == (0, 0, 0)
            if entered:
                assert stream.report is not None
            if not scope.cancel_called:
                break
        assert count > 3
        await read_one(rig, job(NEXT))


async def test_the_opening_of_an_engine_cancelled_at_every_checkpoint() -> None:
    for count in range(1, 1000):
        instrument = CancelAtStep(count)
        trio.lowlevel.add_instrument(instrument)
        model = ScriptedModel()
        with trio.CancelScope() as scope:
            instrument.watch(scope)
            async with open_rig(model) as rig:
                await read_one(rig, job(VICTIM, max_tokens=2))
        trio.lowlevel.remove_instrument(instrument)
        assert not model.live_states
        if not scope.cancel_called:
            break
    assert count > 5


async def test_move_on_after_around_a_job() -> None:
    async with open_rig(gated=True) as rig:
        rig.gate.release(3)
        with trio.move_on_after(3600) as scope:
            async with rig.engine.submit(job(VICTIM)) as stream:
                await rig.gate.reached(4)
                scope.deadline = -1  # long past
                trio.lowlevel.spawn_system_task(open_when_blocked, rig.gate)
                while True:
                    await stream.receive()
        assert scope.cancelled_caught
        assert len(rig.model.forwards) == 4
        assert rig.counts == (0, 0, 0)


async def open_when_blocked(gate: StepGate) -> None:
    await trio.testing.wait_all_tasks_blocked()
    gate.open()


async def test_fifty_jobs_cancelled_together() -> None:
    async with open_rig(gated=True, max_running=8) as rig:
        async with trio.open_nursery() as nursery:
            for n in range(50):
                nursery.start_soon(read_for_ever, rig, job(100 + n, 20, max_tokens=1000))
            await rig.gate.reached(1)
            await trio.testing.wait_all_tasks_blocked()
            rig.gate.release(4)
            await rig.gate.reached(5)
            nursery.cancel_scope.cancel()
            trio.lowlevel.spawn_system_task(open_when_blocked, rig.gate)
        assert len(rig.model.forwards) == 5
        assert rig.counts == (0, 0, 0)
        await read_one(rig, job(NEXT))
        assert [row.first_id for row in rig.model.forwards[5]] == [NEXT]


async def read_for_ever(rig: Rig, request: EngineRequest) -> None:
    async with rig.engine.submit(request) as stream:
        await read_all(stream)
        raise AssertionError("ended")


async def test_killed_ones_in_the_queue_leave_its_order() -> None:
    async with open_rig(gated=True, max_running=1) as rig, trio.open_nursery() as nursery:
        await nursery.start(be_reader, rig, job(NEIGHBOUR, max_tokens=3))
        await rig.gate.reached(1)
        scopes = []
        for first_id in range(70, 80):
            scope = trio.CancelScope()
            await nursery.start(read_within, rig, job(first_id, max_tokens=2), scope)
            scopes.append(scope)
        for n in (0, 1, 2, 4, 5, 8):
            scopes[n].cancel()
        await trio.testing.wait_all_tasks_blocked()
        rig.gate.open()
    started = [row.first_id for rows in rig.model.forwards for row in rows if row.position == 0]
    assert started == [NEIGHBOUR, 73, 76, 77, 79]
    assert len(rig.model.forwards) == 3 + 4 * 2


async def read_within(
    rig: Rig,
    request: EngineRequest,
    scope: trio.CancelScope,
    task_status: trio.TaskStatus[None],
) -> None:
    with scope:
        async with rig.engine.submit(request) as stream:
            task_status.started()
            await read_all(stream)


async def test_leaving_is_bounded_where_the_worker_does_not_answer(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_rig(gated=True, release_timeout_s=30) as rig:
        before = trio.current_time()
        with trio.CancelScope() as scope:
            async with rig.engine.submit(job(VICTIM)) as stream:
                await rig.gate.reached(1)
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert trio.current_time() - before == pytest.approx(30, abs=0.01)
        assert "has not let go" in caplog.text
        assert stream.report is None
        assert rig.engine.stats.running == 1  # the truth
        rig.gate.open()
        await read_one(rig, job(NEXT))
        assert rig.counts == (0, 0, 0)
        assert stream.report is not None


async def test_leaving_the_engine_first_ends_its_jobs() -> None:
    async with trio.open_nursery() as nursery:
        async with open_rig() as rig:
            ended = await nursery.start(read_to_the_end, rig)
        await ended.wait()
    assert rig.counts == (0, 0, 0)


async def read_to_the_end(rig: Rig, task_status: trio.TaskStatus[trio.Event]) -> None:
    done = trio.Event()
    async with rig.engine.submit(job(VICTIM, max_tokens=None)) as stream:
        await read_tokens(stream, 1)
        task_status.started(done)
        _, ended = await read_all(stream)
        assert isinstance(ended, TokensEnded)
        assert ended.reason is EndReason.CANCELLED
    done.set()


@pytest.mark.parametrize("where", ["body", "leaving"])
def test_keyboard_interrupt(where: str) -> None:
    model = ScriptedModel(gate=(gate := StepGate()))

    async def interrupt() -> None:
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)
        await trio.testing.wait_all_tasks_blocked()
        gate.open()

    async def main() -> None:
        async with open_rig(model) as rig, rig.engine.submit(job(VICTIM)):
            await gate.reached(1)
            trio.lowlevel.spawn_system_task(interrupt)
            if where == "body":
                await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert len(model.forwards) == 1
    assert not model.live_states
