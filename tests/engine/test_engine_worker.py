"""The worker alone, as plain synchronous code: when it waits, when it looks, what it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.engine.job import EndReason, EngineRequest, PrefillProgress, TokenEvent, TokensEnded
from ds4trio.engine.messages import FromWorker, Job, Loaded, Signal, StepReport, Taken, ToWorker
from ds4trio.engine.worker import Limits, Worker
from ds4trio.testing import ScriptedModel, ScriptedState
from ds4trio.threads import run_worker_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ds4trio.models.base import Chunk

Said = list[ToWorker]


class Script:
    """What the worker hears: ``waits`` one by one when it waits, ``ready`` when it only looks."""

    def __init__(self, waits: list[Said], ready: Callable[[int], Said] = lambda _: []) -> None:
        self._waits = waits
        self._ready = ready
        self.looks = 0

    def wait(self) -> Said:
        return self._waits.pop(0)

    def take_ready(self) -> Said:
        self.looks += 1
        return self._ready(self.looks)


def job(*token_ids: int, max_tokens: int = 3) -> Job:
    return Job(EngineRequest(token_ids), max_tokens, submitted_at=0.0)


async def run(
    script: Script, model: ScriptedModel | None = None, max_unread_tokens: int = 64
) -> list[StepReport]:
    published: list[FromWorker] = []
    loaded = model or ScriptedModel()
    limits = Limits(
        max_running=2,
        prefill_chunk_tokens=4,
        max_unread_tokens=max_unread_tokens,
        kv_budget_bytes=1 << 20,
    )
    worker = Worker(lambda: loaded, script, published.append, limits, threads=1)
    await run_worker_thread(worker.run, name="worker")
    assert published[0] == Loaded(
        loaded.context_tokens, loaded.vocab_size, loaded.state_layout, kv_budget_bytes=1 << 20
    )
    return [report for report in published if isinstance(report, StepReport)]


def kinds(reports: list[StepReport], of: Job) -> list[list[str]]:
    return [[type(item).__name__ for item in report.deliveries.get(of, [])] for report in reports]


async def test_it_waits_only_when_there_is_nothing_to_compute() -> None:
    one, two = job(1, 2), job(3)
    script = Script([[one], [Signal.WAKE], [two], [Signal.STOP]])
    reports = await run(script)
    assert script.looks == 2 + 2  # before the second and third forward of each
    assert [report.forwards for report in reports] == [0, 1, 1, 1] * 2
    assert kinds(reports, one)[:4] == [
        ["PrefillProgress"],
        ["PrefillProgress", "TokenEvent"],
        ["TokenEvent"],
        ["TokenEvent", "TokensEnded"],
    ]


async def test_one_report_a_step_for_all() -> None:
    one, two = job(1), job(2)
    reports = await run(Script([[one, two], [Signal.STOP]]))
    assert len(reports) == 4
    assert all(set(report.deliveries) == {one, two} for report in reports)


async def test_it_waits_while_all_are_paused() -> None:
    one = job(1, max_tokens=9)
    script = Script([[one], [Taken(one, 1)], [Signal.WAKE], [Taken(one, 2)], [Signal.STOP]])
    model = ScriptedModel()
    reports = await run(script, model, max_unread_tokens=2)
    assert len(model.forwards) == 2 + 1 + 2
    ended = reports[-1].deliveries[one][-1]
    assert isinstance(ended, TokensEnded)
    assert ended.reason is EndReason.CANCELLED  # the stop


async def test_a_flag_set_after_the_look_stops_the_forward() -> None:
    """Between looking into the inbox and the forward, a flag is seen too."""
    one = job(1, max_tokens=9)

    class Flagging(ScriptedModel):
        def new_state(self) -> ScriptedState:  # admission is in between
            one.end(EndReason.CANCELLED, 0.0)
            return super().new_state()

    model = Flagging()
    reports = await run(Script([[one], [Signal.STOP]]), model)
    assert not model.forwards
    assert [type(item) for report in reports for item in report.deliveries[one]] == [
        PrefillProgress,
        TokensEnded,
    ]


async def test_a_flag_set_within_the_forward_keeps_its_token_back() -> None:
    one, two = job(1), job(2)

    class Flagging(ScriptedModel):
        def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
            if len(self.forwards) == 1:
                one.end(EndReason.CANCELLED, 0.0)
            return super().forward(chunks)

    model = Flagging()
    reports = await run(Script([[one, two], [Signal.STOP]]), model)
    (ended,) = reports[2].deliveries[one]
    assert isinstance(ended, TokensEnded)
    assert (ended.report.generated_tokens, ended.report.wasted_generated_tokens) == (1, 1)
    assert [len(rows) for rows in model.forwards] == [2, 2, 1]
    others = [item for report in reports for item in report.deliveries.get(two, [])]
    assert sum(isinstance(item, TokenEvent) for item in others) == 3


async def test_what_is_told_too_late_is_ignored() -> None:
    one = job(1, max_tokens=1)
    reports = await run(Script([[one], [Taken(one, 1), Signal.WAKE], [Signal.STOP]]))
    assert len(reports) == 2
