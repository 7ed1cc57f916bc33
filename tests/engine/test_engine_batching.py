"""Many sequences in one batch: order, sharing, pausing, and what each still says alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
import trio
import trio.testing
from engine_rig import Rig, job, open_rig, read_all, read_events, read_tokens, token_ids
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.engine.job import (
    EndReason,
    EngineRequest,
    PrefillProgress,
    TokenEvent,
    TokensEnded,
)
from ds4trio.errors import ContextOverflowError, OverloadedError, RequestError
from ds4trio.request import SamplingParams
from ds4trio.testing import ALPHABET, ForwardRow, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.base import Chunk


class NoisyModel(ScriptedModel):
    """Logits that depend on the sequence's tokens, and on nothing else."""

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        logits = super().forward(chunks)
        states = [chunk.state for chunk in chunks if chunk.logit_rows]
        for row, state in zip(logits, states, strict=True):
            assert hasattr(state, "token_ids")
            noise = random.Random(repr(state.token_ids))
            row[:] = torch.tensor([noise.gauss(0, 2) for _ in range(self.vocab_size)])
        return logits


def alphabet_from(position: int, count: int) -> list[int]:
    return [ALPHABET[(position + n) % len(ALPHABET)] for n in range(count)]


async def run_all(rig: Rig, requests: list[EngineRequest]) -> list[list[int]]:
    """Each request's tokens. The first is alone in the first forward, during which the others are
    submitted, in order."""
    results: dict[int, list[int]] = {}

    async def one(index: int, task_status: trio.TaskStatus[None]) -> None:
        async with rig.engine.submit(requests[index]) as stream:
            task_status.started()
            results[index], _ = await read_all(stream)

    async with trio.open_nursery() as nursery:
        for index in range(len(requests)):
            await nursery.start(one, index)
            await rig.gate.reached(1)
        rig.gate.open()
    return [results[index] for index in range(len(requests))]


async def test_one_sequence_says_what_its_script_says() -> None:
    async with open_rig() as rig, rig.engine.submit(job(65, 5, max_tokens=40)) as stream:
        events = await read_events(stream)
    assert token_ids(events) == alphabet_from(5, 40)
    assert events[:2] == [PrefillProgress(0, 5), PrefillProgress(5, 5)]
    ended = events[-1]
    assert isinstance(ended, TokensEnded)
    assert ended.reason is EndReason.LENGTH
    assert ended.report == stream.report
    assert (ended.report.prompt_tokens, ended.report.generated_tokens) == (5, 40)
    times = [event.at for event in events if isinstance(event, TokenEvent)]
    assert times == sorted(times)
    assert rig.counts == (0, 0, 0)
    stats = rig.engine.stats
    assert (stats.steps, stats.prompt_tokens, stats.generated_tokens) == (40, 5, 40)


async def test_after_the_end_the_channel_has_ended() -> None:
    async with open_rig() as rig:
        async with rig.engine.submit(job(65)) as stream:
            await read_all(stream)
            for _ in range(2):
                with pytest.raises(trio.EndOfChannel):
                    await stream.receive()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive()


async def test_eight_streams_share_their_steps() -> None:
    async with open_rig(gated=True) as rig:
        results = await run_all(rig, [job(65 + n, 3 + n, max_tokens=32) for n in range(8)])
    assert results == [alphabet_from(3 + n, 32) for n in range(8)]
    # The first had one forward alone, in which the others were submitted.
    assert rig.engine.stats.steps == 33


async def test_first_come_first_served() -> None:
    async with open_rig(gated=True, max_running=2) as rig:
        first_ids = list(range(65, 75))
        lengths = [4, 9, 1, 1, 7, 2, 2, 8, 1, 3]
        requests = [job(i, max_tokens=n) for i, n in zip(first_ids, lengths, strict=True)]
        await run_all(rig, requests)
    started = [row.first_id for rows in rig.model.forwards for row in rows if row.position == 0]
    assert started == first_ids
    assert max(len(rows) for rows in rig.model.forwards) == 2


async def test_a_decode_waits_for_no_more_than_one_chunk() -> None:
    async with open_rig(gated=True, prefill_chunk_tokens=16, max_unread_tokens=1000) as rig:
        results = await run_all(rig, [job(65, max_tokens=60), job(66, 400), job(67, 101), job(68)])
    assert results == [
        alphabet_from(3, 60),
        alphabet_from(400, 20),
        alphabet_from(101, 20),
        alphabet_from(3, 20),
    ]
    forwards = rig.model.forwards
    assert all(forwards[n][0] == ForwardRow(0, 65, 2 + n, (t,)) for n, t in decoded(results[0]))
    for rows in forwards[1:]:
        prompt = [
            row for row in rows if row.position < {65: 3, 66: 400, 67: 101, 68: 3}[row.first_id]
        ]
        assert sum(len(row.token_ids) for row in prompt) <= 16
    # 400 = 25 * 16; then 101 = 6 * 16 + 5, and what is left of the last budget is the next one's.
    assert [len(rows) for rows in forwards[1:26]] == [2] * 25
    assert [row.first_id for row in forwards[32]] == [65, 66, 67, 68]
    assert [row.token_ids for row in forwards[32]][3] == (68, 1, 2)


def decoded(tokens: list[int]) -> list[tuple[int, int]]:
    """The number (from 0) of the forward that takes in each token, if the first gives the first."""
    return list(enumerate(tokens, start=1))[:-1]


async def test_a_step_may_hold_pieces_of_several_prompts() -> None:
    async with open_rig(gated=True, prefill_chunk_tokens=16) as rig:
        await run_all(rig, [job(65), job(66, 5), job(67, 6), job(68, 10)])
    assert [len(row.token_ids) for row in rig.model.forwards[1]] == [1, 5, 6, 5]
    assert [len(row.token_ids) for row in rig.model.forwards[2]] == [1, 1, 1, 5]


@pytest.mark.parametrize("window", [1, 2, 7, 64])
async def test_an_unread_sequence_pauses_and_goes_on(window: int) -> None:
    async with open_rig(max_unread_tokens=window) as rig:
        async with (
            rig.engine.submit(job(65, max_tokens=200)) as slow,
            rig.engine.submit(job(66, max_tokens=300)) as quick,
        ):
            assert (await read_all(quick))[0] == alphabet_from(3, 300)
            assert rig.engine.stats.generated_tokens == 300 + window
            assert len(rig.model.rows_of(65)) == window
            steps = rig.engine.stats.steps
            events = await read_tokens(slow, 1)
            assert len(token_ids(events)) == window
            assert rig.engine.stats.steps == steps  # until it was read
            rest, _ = await read_all(slow)
            assert token_ids(events) + rest == alphabet_from(3, 200)
        assert rig.counts == (0, 0, 0)


async def test_a_full_queue_is_told_when_to_come_back() -> None:
    async with open_rig(gated=True, max_running=1, max_waiting=1) as rig:
        engine = rig.engine
        async with engine.submit(job(65)), trio.open_nursery() as nursery:
            await rig.gate.reached(1)
            nursery.start_soon(stay, rig, job(66))
            await trio.testing.wait_all_tasks_blocked()
            assert (engine.stats.running, engine.stats.waiting) == (1, 1)
            with pytest.raises(OverloadedError) as caught:
                engine.check_capacity()
            assert caught.value.retry_after_s == 1
            with pytest.raises(OverloadedError):
                async with engine.submit(job(67)):
                    pass
            # Who leaves the queue leaves room at once, although the worker is in a forward.
            nursery.cancel_scope.cancel()
            await trio.lowlevel.cancel_shielded_checkpoint()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            assert engine.stats.waiting == 1
            engine.check_capacity()
            rig.gate.open()
        assert rig.counts == (0, 0, 0)
        assert not rig.model.rows_of(66)


async def stay(rig: Rig, request: EngineRequest) -> None:
    async with rig.engine.submit(request):
        await trio.sleep_forever()


async def test_stop_ids_end_and_are_not_part() -> None:
    request = EngineRequest(b"xyz", stop_ids=frozenset(b"g"))
    async with open_rig() as rig, rig.engine.submit(request) as stream:
        tokens, ended = await read_all(stream)
    assert bytes(tokens) == b"def"
    assert ended.reason is EndReason.STOP_ID
    assert ended.report.generated_tokens == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_no_stop_id_before_min_tokens(temperature: float) -> None:
    request = EngineRequest(
        b"xyz",
        sampling=SamplingParams(temperature=temperature, seed=1),
        min_tokens=4,
        stop_ids=frozenset(b"eh"),
    )
    async with open_rig() as rig, rig.engine.submit(request) as stream:
        tokens, _ = await read_all(stream)
    assert tokens[0] == ord("d")
    assert tokens[1] not in b"eh"
    assert bytes(tokens[2:]) == b"fg"


async def test_tokens_end_where_the_context_does() -> None:
    model = ScriptedModel(context_tokens=10)
    for max_tokens in (None, 50):
        async with open_rig(model) as rig:
            async with rig.engine.submit(job(65, 7, max_tokens=max_tokens)) as stream:
                tokens, ended = await read_all(stream)
            assert tokens == alphabet_from(7, 3)
            assert ended.reason is EndReason.LENGTH


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (EngineRequest([]), RequestError),
        (EngineRequest([3, -1]), RequestError),
        (EngineRequest([258]), RequestError),
        (EngineRequest([1], max_tokens=-1), RequestError),
        (EngineRequest([1] * 10), ContextOverflowError),
        (EngineRequest([1] * 11), ContextOverflowError),
    ],
    ids=str,
)
async def test_requests_that_cannot_be_served(
    request_: EngineRequest, error: type[RequestError]
) -> None:
    async with open_rig(ScriptedModel(context_tokens=10)) as rig:
        with pytest.raises(error):
            async with rig.engine.submit(request_):
                pass
        assert rig.counts == (0, 0, 0)
        async with rig.engine.submit(EngineRequest([257] * 9)) as stream:
            assert len((await read_all(stream))[0]) == 1


SAMPLINGS = [
    SamplingParams(seed=7),
    SamplingParams(seed=8, top_k=5, temperature=0.7),
    SamplingParams(seed=7, top_p=0.8),
    SamplingParams(temperature=0),
    SamplingParams(seed=9, min_p=0.05, top_p=0.95),
    SamplingParams(),
]


async def test_a_seeded_sequence_is_the_same_alone_and_in_a_batch() -> None:
    requests = [
        EngineRequest([65 + n, 2, 3], sampling=sampling, max_tokens=30)
        for n, sampling in enumerate(SAMPLINGS)
    ]
    alone = []
    for request in requests:
        async with open_rig(NoisyModel()) as rig, rig.engine.submit(request) as stream:
            alone.append((await read_all(stream))[0])
    async with (
        open_rig(NoisyModel(), prefill_chunk_tokens=2) as rig,
        trio.open_nursery() as nursery,
    ):
        together: dict[int, list[int]] = {}

        async def one(index: int) -> None:
            async with rig.engine.submit(requests[index]) as stream:
                together[index], _ = await read_all(stream)

        for index in range(len(requests)):
            nursery.start_soon(one, index)
    seeded = range(len(requests) - 1)  # the last draws a fresh seed
    assert [together[n] for n in seeded] == [alone[n] for n in seeded]
    assert alone[0] != alone[2]


async def test_two_engines_in_one_process() -> None:
    first = ScriptedModel(lambda ids: ids[0])
    async with open_rig() as one, open_rig(first) as other:
        assert one.engine is not other.engine
        async with one.engine.submit(job(65)) as stream, other.engine.submit(job(65)) as echo:
            assert (await read_all(echo))[0] == [65] * 20
            assert (await read_all(stream))[0] == alphabet_from(3, 20)
    assert (one.counts, other.counts) == ((0, 0, 0), (0, 0, 0))


@settings(max_examples=15)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=8),
    chunk=st.integers(1, 20),
    places=st.integers(1, 4),
    window=st.integers(1, 8),
)
def test_any_mix_gives_each_its_own(
    shapes: list[tuple[int, int]], chunk: int, places: int, window: int
) -> None:
    async def main() -> None:
        async with open_rig(
            gated=True,
            prefill_chunk_tokens=chunk,
            max_running=places,
            max_unread_tokens=window,
        ) as rig:
            requests = [job(65 + n, *shape) for n, shape in enumerate(shapes)]
            expected = [alphabet_from(*shape) for shape in shapes]
            assert await run_all(rig, requests) == expected
            assert rig.counts == (0, 0, 0)
            stats = rig.engine.stats
            assert stats.prompt_tokens == sum(prompt for prompt, _ in shapes)
            assert stats.generated_tokens == sum(tokens for _, tokens in shapes)

    trio.run(main)
