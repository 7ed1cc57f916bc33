"""What breaks: one sequence's numbers, the model, the loading."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch
import trio
import trio.testing
from engine_rig import Rig, job, open_rig, read_all

from ds4trio.engine.engine import FAILURE_GRACE_S, open_engine
from ds4trio.errors import Ds4TrioError, EngineFailed, LoadError, UnavailableError
from ds4trio.testing import ScriptedModel, StepGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.engine.engine import Engine
    from ds4trio.engine.job import EngineRequest
    from ds4trio.models.base import CausalLM, Chunk


class BrokenModel(ScriptedModel):
    """Raises in its forward number ``at``."""

    def __init__(self, at: int, gate: StepGate) -> None:
        super().__init__(gate=gate)
        self._at = at

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        logits = super().forward(chunks)
        if len(self.forwards) == self._at:
            raise RuntimeError("the device is gone")
        return logits


class NanModel(ScriptedModel):
    """Cannot count for prompts that begin with 66, from their fourth token on."""

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        logits = super().forward(chunks)
        for index, row in enumerate(self.forwards[-1]):
            if row.first_id == 66 and row.position > 5:
                logits[index, 3] = torch.nan
        return logits


async def expect_failure(
    rig: Rig, request: EngineRequest, task_status: trio.TaskStatus[None]
) -> None:
    async with rig.engine.submit(request) as stream:
        task_status.started()
        with pytest.raises(EngineFailed, match="RuntimeError") as caught:
            await read_all(stream)
    assert isinstance(caught.value.__cause__, EngineFailed)
    assert str(caught.value.__cause__.__cause__) == "the device is gone"
    assert stream.report is None


@pytest.mark.parametrize("at", [1, 2, 9])
async def test_a_dead_worker_fails_all_jobs_and_ends_the_block(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    gate = StepGate()
    model = BrokenModel(at, gate)
    engines: list[Engine] = []

    async def use() -> None:
        async with open_rig(model, max_running=2) as rig:
            engines.append(rig.engine)
            async with trio.open_nursery() as nursery:
                for first_id in (65, 66, 67):
                    await nursery.start(expect_failure, rig, job(first_id))
                await gate.reached(1)
                gate.open()
            await trio.sleep_forever()

    with pytest.raises(EngineFailed, match="RuntimeError") as caught:
        await use()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert len(model.forwards) == at
    (engine,) = engines
    assert engine.failed
    assert (engine.stats.running, engine.stats.waiting) == (0, 0)
    with pytest.raises(EngineFailed):
        engine.check_capacity()
    assert "the device is gone" in caplog.text


async def test_an_idle_body_hears_of_the_death_through_its_job() -> None:
    """The error may also leave by the body itself; it is the same kind, and bare."""
    gate = StepGate()
    gate.open()
    with pytest.raises(EngineFailed):
        async with open_rig(BrokenModel(3, gate)) as rig, rig.engine.submit(job(65)) as stream:
            await read_all(stream)


async def test_readers_get_their_time_but_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate = StepGate()
    gate.open()
    told: list[float] = []

    async def tell_slowly() -> None:
        async with open_rig(BrokenModel(3, gate)) as rig, rig.engine.submit(job(65)) as stream:
            with pytest.raises(EngineFailed):
                await read_all(stream)
            await trio.sleep(FAILURE_GRACE_S - 1)
            told.append(trio.current_time())
            await trio.sleep_forever()

    with pytest.raises(EngineFailed):
        await tell_slowly()
    assert trio.current_time() - told[0] == pytest.approx(1, abs=0.01)


async def test_a_sequence_that_is_not_a_number_ends_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_rig(NanModel()) as rig, trio.open_nursery() as nursery:
        nursery.start_soon(read_well, rig, job(65))
        nursery.start_soon(read_badly, rig, job(66))
        nursery.start_soon(read_well, rig, job(67))
    assert rig.counts == (0, 0, 0)
    assert rig.engine.stats.generated_tokens == 20 + 4 + 20
    assert [record.message for record in caplog.records] == [
        "a sequence ended: the model's logits for it were not finite numbers"
    ]


async def read_well(rig: Rig, request: EngineRequest) -> None:
    async with rig.engine.submit(request) as stream:
        tokens, _ = await read_all(stream)
        assert bytes(tokens) == b"defghijklmnopqrstuvw"


async def read_badly(rig: Rig, request: EngineRequest) -> None:
    with pytest.raises(Ds4TrioError, match="not a number") as caught:
        async with rig.engine.submit(request) as stream:
            await read_all(stream)
    assert not isinstance(caught.value, EngineFailed)
    assert stream.report is not None
    assert stream.report.generated_tokens == 4


@pytest.mark.parametrize("error", [LoadError("no such tensor"), ValueError("a bug")], ids=repr)
async def test_a_model_that_cannot_be_loaded(error: Exception) -> None:
    def load() -> CausalLM:
        raise error

    with pytest.raises(type(error)) as caught:
        async with open_engine(load):
            raise AssertionError("opened")
    assert caught.value is error


async def test_the_bodys_own_error_comes_out_bare() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_rig() as rig, rig.engine.submit(job(65)):
            raise ZeroDivisionError
    assert rig.counts == (0, 0, 0)


async def test_a_closed_engine_takes_nothing() -> None:
    async with open_rig() as rig:
        pass
    with pytest.raises(UnavailableError):
        async with rig.engine.submit(job(65)):
            pass


async def test_only_one_thread_computes_and_it_ends() -> None:
    seen: set[threading.Thread] = set()

    class Watched(ScriptedModel):
        def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
            seen.add(threading.current_thread())
            return super().forward(chunks)

    def load() -> CausalLM:
        seen.add(threading.current_thread())
        return Watched()

    async with open_engine(load, threads=1) as engine, engine.submit(job(65)) as stream:
        await read_all(stream)
    assert len(seen) == 1
    assert threading.main_thread() not in seen
    await trio.testing.wait_all_threads_completed()
