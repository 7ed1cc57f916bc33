"""What sequences leave for each other, and what they have to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from engine_rig import Rig, open_rig, read_all, read_tokens

from ds4trio.engine.job import EndReason, EngineRequest, JobReport
from ds4trio.engine.states import States
from ds4trio.errors import RequestError
from ds4trio.testing import ScriptedModel, StepGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.engine.scheduler import Plan
    from ds4trio.engine.sequence import JobSequence

CHUNK = 8


@pytest.fixture(params=[False, True], ids=["anywhere", "tips"])
def tips(request: pytest.FixtureRequest) -> bool:
    """Of both kinds of models."""
    return bool(request.param)


def prompt(number: int, tokens: int) -> tuple[int, ...]:
    return (number, *((i * 7 + number) % 256 for i in range(1, tokens)))


async def ask(rig: Rig, token_ids: Sequence[int], max_tokens: int = 4) -> tuple[int, ...]:
    """The answer."""
    async with rig.engine.submit(EngineRequest(token_ids, max_tokens=max_tokens)) as stream:
        answer, _ = await read_all(stream)
    return tuple(answer)


async def report(rig: Rig, request: EngineRequest) -> JobReport:
    async with rig.engine.submit(request) as stream:
        await read_all(stream)
    assert stream.report is not None
    return stream.report


async def cached(rig: Rig, token_ids: Sequence[int], max_tokens: int = 4) -> int:
    """How much of a prompt was reused. What it took adds up, and its answer is the script's."""
    seen = len(rig.model.forwards)
    told = await report(rig, EngineRequest(token_ids, max_tokens=max_tokens))
    assert told.cached_prompt_tokens + told.computed_prompt_tokens == len(token_ids)
    assert told.cached_from == ("memory" if told.cached_prompt_tokens else None)
    rows = [row for rows in rig.model.forwards[seen:] for row in rows]
    assert sum(len(row.token_ids) for row in rows) == told.computed_prompt_tokens + max_tokens - 1
    assert rows[0].position == told.cached_prompt_tokens
    return told.cached_prompt_tokens


def model(*, tips: bool, gate: StepGate | None = None) -> ScriptedModel:
    """What it says depends on all it was told."""
    return ScriptedModel(lambda ids: (sum(ids) + len(ids)) % 256, gate=gate, has_tips=tips)


async def test_exact_repeats_and_the_next_turn(tips: bool) -> None:
    async with open_rig(model(tips=tips), prefill_chunk_tokens=CHUNK) as rig:
        first = prompt(1, 61)
        answer = await ask(rig, first)
        assert await cached(rig, first) == 60  # all but one token
        assert await ask(rig, first) == answer
        # The next turn has the answer's tokens in it, of which the last was never computed.
        assert await cached(rig, first + answer + prompt(2, 20)) == 61 + 3
        stats = rig.engine.stats
        assert (stats.kv.hits["memory"], stats.kv.misses) == (3, 1)
        assert stats.cached_prompt_tokens == 60 + 60 + 64


async def test_an_edit_of_the_last_turn_reuses_all_before_it() -> None:
    async with open_rig(model(tips=False)) as rig:
        await ask(rig, prompt(1, 50) + prompt(2, 30))
        assert await cached(rig, prompt(1, 50) + prompt(3, 30)) == 50


@pytest.mark.parametrize("named", [False, True])
async def test_with_tips_the_place_where_prompts_part_is_learnt_or_named(named: bool) -> None:
    async with open_rig(model(tips=True)) as rig:
        stable = (50,) if named else ()
        told = [
            await report(
                rig,
                EngineRequest(
                    prompt(1, 50) + prompt(number, 30), max_tokens=2, stable_prefixes=stable
                ),
            )
            for number in (2, 3, 4)
        ]
        reused = [each.cached_prompt_tokens for each in told]
        # Not named, it is seen by the second, which computes it, and saves it for the third.
        assert reused == ([0, 50, 50] if named else [0, 0, 50])


async def test_two_sessions_take_turns_and_share_their_system_prompt(tips: bool) -> None:
    async with open_rig(model(tips=tips), prefill_chunk_tokens=CHUNK) as rig:
        system = prompt(9, 200)
        one, other = system + prompt(1, 20), system + prompt(2, 20)
        for _ in range(3):
            for history in (one, other):
                await ask(rig, history)
        for history in (one, other):
            assert await cached(rig, history) == len(history) - 1
        assert await cached(rig, system + prompt(3, 10)) == 200
        # Nothing is there twice: the system prompt, three ends, four answers' tokens.
        assert rig.engine.stats.kv.cached_bytes <= 8 * (200 + 20 + 20 + 10 + 3 * 4 + 20 * tips)


async def test_a_client_that_leaves_at_60_percent_of_a_prefill_and_tries_again_gets_its_answer(
    tips: bool,
) -> None:
    """Of 26 chunks a client waits for 16. Not one token is computed twice, not even the chunk's
    that was under way when it left.
    """
    gate = StepGate()
    asked = prompt(1, 26 * CHUNK)
    async with open_rig(model(tips=tips, gate=gate), prefill_chunk_tokens=CHUNK) as rig:
        with gate.opened_at_exit():
            async with rig.engine.submit(EngineRequest(asked, max_tokens=2)) as stream:
                gate.release(15)
                await gate.reached(16)
                stream.cancel()
                gate.open()
            seen = len(rig.model.forwards)
            assert seen == 16
            assert await cached(rig, asked, max_tokens=2) == 16 * CHUNK
        assert len(rig.model.forwards) - seen <= 10 + 2


async def test_a_second_one_takes_what_the_first_is_still_computing(tips: bool) -> None:
    gate = StepGate()
    asked = prompt(1, 40)
    async with open_rig(model(tips=tips, gate=gate), prefill_chunk_tokens=CHUNK) as rig:
        with gate.opened_at_exit():
            async with rig.engine.submit(EngineRequest(asked, max_tokens=2)) as first:
                gate.release(2)
                await gate.reached(3)
                async with rig.engine.submit(EngineRequest(asked, max_tokens=2)) as second:
                    gate.open()
                    one, _ = await read_all(first)
                    other, _ = await read_all(second)
    assert one == other
    assert second.report is not None
    assert second.report.cached_prompt_tokens >= 32


async def test_answers_to_one_prompt_compute_it_once(tips: bool) -> None:
    async with open_rig(model(tips=tips), prefill_chunk_tokens=CHUNK) as rig:
        requests = [EngineRequest(prompt(1, 64), max_tokens=2)] * 4
        async with rig.engine.submit_all(requests) as streams:
            for stream in streams:
                await read_all(stream)
        assert rig.engine.stats.prompt_tokens - rig.engine.stats.cached_prompt_tokens <= 64 + 4 * 8


async def test_a_prompts_logprobs_are_computed_and_none_of_it_is_reused() -> None:
    async with open_rig() as rig:
        request = EngineRequest(prompt(1, 30), max_tokens=2, prompt_logprobs=True)
        assert [(await report(rig, request)).computed_prompt_tokens for _ in range(2)] == [30, 30]
        assert await cached(rig, prompt(1, 30)) == 29


async def test_without_a_cache_nothing_is_kept() -> None:
    async with open_rig(prefix_cache=False) as rig:
        for _ in range(2):
            assert (
                await report(rig, EngineRequest(prompt(1, 30), max_tokens=2))
            ).cached_from is None
        assert rig.engine.stats.kv.cached_bytes == rig.engine.stats.kv.misses == 0


# A token takes 8 bytes.


async def test_what_can_never_fit_is_refused_at_once() -> None:
    async with open_rig(kv_budget_bytes=8 * 100) as rig:
        with pytest.raises(RequestError, match=r"needs 808 bytes .* 800 bytes \(kv_budget_bytes\)"):
            async with rig.engine.submit(EngineRequest(prompt(1, 100))):
                pass
        assert await ask(rig, prompt(1, 98), max_tokens=50)  # as many as there is room for
        ended = await report(rig, EngineRequest(prompt(1, 90)))
        assert ended.generated_tokens == 10


async def test_what_fits_later_waits_and_overtakes_nobody() -> None:
    async with open_rig(gated=True, kv_budget_bytes=8 * 100) as rig:
        async with (
            rig.engine.submit(EngineRequest(prompt(1, 60), max_tokens=10)) as large,
            rig.engine.submit(EngineRequest(prompt(2, 60), max_tokens=10)) as waiting,
            rig.engine.submit(EngineRequest(prompt(3, 5), max_tokens=5)) as small,
        ):
            await rig.gate.reached(1)
            assert (rig.engine.stats.running, rig.engine.stats.waiting) == (1, 2)
            assert rig.engine.stats.kv.running_bytes == 8 * 70
            rig.gate.open()
            for stream in (large, waiting, small):
                _, ended = await read_all(stream)
                assert ended.reason is EndReason.LENGTH
        firsts = [row.first_id for rows in rig.model.forwards for row in rows]
        assert firsts.index(2) < firsts.index(3)
        assert rig.engine.stats.kv.running_bytes == 0


async def test_all_grow_within_the_memory_and_nobody_is_ended_early() -> None:
    """Four may need twice the memory together: some wait, and all are answered in full."""
    async with open_rig(kv_budget_bytes=8 * 300) as rig:
        requests = [EngineRequest(prompt(n, 10), max_tokens=150) for n in range(4)]
        async with rig.engine.submit_all(requests) as streams, trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(read_all, stream)
        reports = [stream.report for stream in streams]
        assert [each.generated_tokens for each in reports if each is not None] == [150] * 4
        assert max(len(rows) for rows in rig.model.forwards) > 1


async def test_running_ones_come_first_and_take_from_what_is_kept() -> None:
    async with open_rig(kv_budget_bytes=8 * 400) as rig:
        for number in range(4):
            await ask(rig, prompt(number, 80))
        assert rig.engine.stats.kv.cached_bytes > 8 * 240
        await ask(rig, prompt(9, 250), max_tokens=2)
        kv = rig.engine.stats.kv
        assert kv.evictions["running"] > 0
        assert kv.cached_bytes <= 8 * 350


async def test_an_answer_that_grows_takes_from_what_is_kept() -> None:
    """Running and kept together are never more than there is, at any step."""
    async with open_rig(kv_budget_bytes=8 * 400) as rig:
        for number in range(4):
            await ask(rig, prompt(number, 80))
        async with rig.engine.submit(EngineRequest(prompt(9, 20), max_tokens=350)) as stream:
            read = 0
            while read < 349:
                read += len(await read_tokens(stream, 1))
                kv = rig.engine.stats.kv
                assert kv.running_bytes + kv.cached_bytes <= kv.budget_bytes
            assert kv.running_bytes > 8 * 256


async def test_who_waits_for_memory_lets_the_worker_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that is behind holds memory; the worker does not ask again and again for it."""
    rounds = 0
    real_ready = States.ready

    def ready(self: States, plan: Plan[JobSequence], a_decode: int) -> Plan[JobSequence]:
        nonlocal rounds
        rounds += 1
        return real_ready(self, plan, a_decode)

    monkeypatch.setattr(States, "ready", ready)
    async with (
        open_rig(kv_budget_bytes=8 * 200, max_unread_tokens=4) as rig,
        rig.engine.submit(EngineRequest(prompt(1, 10), max_tokens=70)) as behind,
        rig.engine.submit(EngineRequest(prompt(2, 10), max_tokens=180)) as waiting,
    ):
        await read_tokens(waiting, 110)
        with trio.move_on_after(0.05):  # all that is granted
            await read_tokens(waiting, 60)
        before = rounds
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert rounds == before
        for stream, tokens in ((behind, 70), (waiting, 180)):
            _, ended = await read_all(stream)
            assert ended.report.generated_tokens == tokens
