"""Several sequences in one block: admitted together, read together, gone together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from engine_rig import Rig, job, open_rig, read_all, token_ids

from ds4trio.engine.job import EngineEvent, EngineRequest, TokensEnded
from ds4trio.engine.stream import TokenStream, receive_any
from ds4trio.errors import Ds4TrioError, OverloadedError, RequestError
from ds4trio.testing import ALPHABET, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence


def alphabet_from(position: int, count: int) -> list[int]:
    return [ALPHABET[(position + n) % len(ALPHABET)] for n in range(count)]


async def read_together(streams: list[TokenStream]) -> list[list[EngineEvent]]:
    events: list[list[EngineEvent]] = [[] for _ in streams]
    while True:
        try:
            news = await receive_any(streams)
        except trio.EndOfChannel:
            return events
        assert news
        for index, some in news:
            assert some
            events[index] += some


@pytest.mark.parametrize("window", [1, 3, 64])
async def test_read_together(window: int) -> None:
    lengths = [5, 40, 1, 17]
    requests = [job(65 + n, 3 + n, max_tokens=length) for n, length in enumerate(lengths)]
    async with open_rig(max_unread_tokens=window) as rig:
        async with rig.engine.submit_all(requests) as streams:
            events = await read_together(streams)
        assert rig.counts == (0, 0, 0)
    for n, length in enumerate(lengths):
        assert token_ids(events[n]) == alphabet_from(3 + n, length)
        assert isinstance(events[n][-1], TokensEnded)


async def test_a_step_wakes_the_reader_once_for_all() -> None:
    async with (
        open_rig(gated=True) as rig,
        rig.engine.submit_all([job(65), job(66), job(67)]) as streams,
    ):
        await rig.gate.reached(1)
        await receive_any(streams)  # all were admitted
        for forward in range(1, 4):
            rig.gate.release()
            await rig.gate.reached(forward + 1)
            await trio.testing.wait_all_tasks_blocked()
            news = await receive_any(streams)
            assert [index for index, _ in news] == [0, 1, 2]
        rig.gate.open()


@pytest.mark.parametrize("forward", [1, 2, 5])
async def test_all_stop_in_the_same_step(forward: int) -> None:
    """Cases C50 and C51: eight sequences of one request; their reader leaves."""
    async with open_rig(gated=True, max_running=9) as rig, trio.open_nursery() as nursery:
        neighbour: list[int] = []

        async def read_neighbour(task_status: trio.TaskStatus[None]) -> None:
            async with rig.engine.submit(job(90, max_tokens=12)) as stream:
                task_status.started()
                neighbour.extend((await read_all(stream))[0])

        with trio.CancelScope() as scope:
            async with rig.engine.submit_all([job(65, max_tokens=99) for _ in range(8)]):
                await nursery.start(read_neighbour)
                rig.gate.release(forward - 1)
                await rig.gate.reached(forward)
                scope.cancel()
                nursery.start_soon(open_when_left, rig)
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert rig.engine.stats.running <= 1  # the neighbour
    assert len(rig.model.rows_of(65)) == forward
    assert rig.counts == (0, 0, 0)
    assert neighbour == alphabet_from(3, 12)
    assert rig.engine.stats.wasted_prompt_tokens + rig.engine.stats.wasted_generated_tokens > 0


async def open_when_left(rig: Rig) -> None:
    await trio.testing.wait_all_tasks_blocked()  # the flags are set
    rig.gate.open()


async def test_all_or_none() -> None:
    async with open_rig(gated=True, max_running=1, max_waiting=3) as rig:
        engine = rig.engine
        with pytest.raises(RequestError, match="5 answers"):
            async with engine.submit_all([job(65)] * 5):
                pass
        with pytest.raises(RequestError, match="empty"):
            async with engine.submit_all([job(65), EngineRequest([])]):
                pass
        async with engine.submit_all([job(65), job(66)]):
            engine.check_capacity(2)
            with pytest.raises(OverloadedError):
                engine.check_capacity(3)
            with pytest.raises(OverloadedError):
                async with engine.submit_all([job(67)] * 3):
                    pass
            assert engine.stats.waiting + engine.stats.running == 2
            rig.gate.open()
        assert rig.counts == (0, 0, 0)


async def test_none_at_all() -> None:
    async with open_rig() as rig, rig.engine.submit_all([]) as streams:
        with pytest.raises(trio.EndOfChannel):
            await receive_any(streams)


async def test_waiting_together_can_be_cancelled_and_loses_nothing() -> None:
    async with open_rig(gated=True) as rig, rig.engine.submit_all([job(65), job(66)]) as streams:
        await rig.gate.reached(1)
        await receive_any(streams)
        with trio.CancelScope() as scope:
            scope.cancel()
            await receive_any(streams)
        rig.gate.open()
        for events in await read_together(streams):
            assert token_ids(events) == alphabet_from(3, 20)


async def test_one_fails_and_the_others_can_be_read() -> None:
    def broken_for_66(ids: Sequence[int]) -> list[float]:
        return [float("nan") if ids[0] == 66 else float(n == 7) for n in range(258)]

    async with (
        open_rig(ScriptedModel(logits=broken_for_66)) as rig,
        rig.engine.submit_all([job(65), job(66)]) as streams,
    ):
        with pytest.raises(Ds4TrioError, match="not a number"):
            await read_together(streams)
        ((*_, ended),) = await read_together([streams[0]])
        assert isinstance(ended, TokensEnded)
