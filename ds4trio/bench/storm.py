"""``ds4trio bench storm``: clients that leave, by the hundred, and what they leave behind.

Three storms, each against a running server:

- *timeouts*: clients that want a whole answer and give up after half a second;
- *killed*: a process with many streams, ended by SIGKILL;
- *random*: requests of all protocols, streaming and not, left in mixed ways at random moments.

Beside each runs a neighbour whose answer must not change; after each, one short request is timed
and the server's own figures must be back where they were.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import h11
import trio

from ds4trio.bench.client import BODIES, Target, request_body
from ds4trio.bench.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

#: Errors that a client meets when it, or the server, ends a connection early.
ENDED = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)
#: How long the server gets to come to rest after a storm. A failure to do so is reported, not hid.
SETTLE_S = 30.0
LONG = 10_000
NEIGHBOUR_TOKENS = 64


@dataclass(frozen=True, slots=True)
class StormPlan:
    """How hard to blow. ``life_s`` is the span over which random clients leave."""

    timeouts: int = 200
    killed_streams: int = 300
    requests: int = 10_000
    concurrency: int = 64
    life_s: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StormResult:
    """What one storm did. Times in seconds; ``release`` is the server's own histogram, each figure
    the upper bound of its bucket."""

    storm: str
    clients: int
    seconds: float
    next_answer_s: float
    release_p50_s: float | None
    release_p99_s: float | None
    wasted_prompt_tokens: int
    wasted_generated_tokens: int
    neighbour_unchanged: bool
    left_behind: Mapping[str, float]

    @property
    def clean(self) -> bool:
        return self.neighbour_unchanged and not self.left_behind

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "clean": self.clean}


async def storms(target: Target, plan: StormPlan) -> list[StormResult]:
    """All three, one after the other. Raises: OSError if the server cannot be reached."""
    return [
        await _storm(target, "timeouts", plan.timeouts, _timeouts, plan),
        await _storm(target, "killed", plan.killed_streams, _killed, plan),
        await _storm(target, "random", plan.requests, _random, plan),
    ]


async def _storm(
    target: Target,
    name: str,
    clients: int,
    blow: Callable[[Target, StormPlan], Awaitable[None]],
    plan: StormPlan,
) -> StormResult:
    expected = await _neighbour(target)
    before = await Figures.read(target)
    began = perf_counter()
    heard: list[bytes] = []

    async def listen() -> None:
        heard.append(await _neighbour(target))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await blow(target, plan)
    ended = perf_counter()
    await _neighbour(target, max_tokens=1)
    answered = perf_counter()
    after = await _settled(target, before)
    p50, p99 = after.release_quantiles(before)
    return StormResult(
        storm=name,
        clients=clients,
        seconds=ended - began,
        next_answer_s=answered - ended,
        release_p50_s=p50,
        release_p99_s=p99,
        wasted_prompt_tokens=after.grown("ds4trio_wasted_prompt_tokens_total", before),
        wasted_generated_tokens=after.grown("ds4trio_wasted_generated_tokens_total", before),
        neighbour_unchanged=heard == [expected],
        left_behind=after.left_behind(before),
    )


async def _neighbour(target: Target, max_tokens: int = NEIGHBOUR_TOKENS) -> bytes:
    """The text of a greedy answer, which no storm may change; a full queue is waited out."""
    body = request_body("/v1/completions", stream=False, max_tokens=max_tokens, ignore_eos=True)
    while True:
        async with await target.connect() as connection:
            await connection.send("POST", "/v1/completions", body)
            answer = await connection.read_all()
        if connection.status != 429:
            return answer.partition(b'"choices":')[2].partition(b'"usage":')[0]
        await trio.sleep(0.05)


async def _settled(target: Target, before: Figures) -> Figures:
    """The server's figures once it has come to rest, or after ``SETTLE_S`` as they are."""
    deadline = trio.current_time() + SETTLE_S
    figures = await Figures.read(target)
    while figures.left_behind(before) and trio.current_time() < deadline:
        await trio.sleep(0.1)
        figures = await Figures.read(target)
    return figures


async def _timeouts(target: Target, plan: StormPlan) -> None:
    async def give_up_soon() -> None:
        body = request_body("/v1/chat/completions", stream=False, max_tokens=LONG)
        with trio.move_on_after(0.5):
            await _ask(target, "/v1/chat/completions", body)

    async with trio.open_nursery() as nursery:
        for _ in range(plan.timeouts):
            nursery.start_soon(give_up_soon)


async def _killed(target: Target, plan: StormPlan) -> None:
    """A process of many streams, killed half a second after the last was asked for."""
    command = [sys.executable, "-m", "ds4trio.bench.streams", target.url, str(plan.killed_streams)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    async with process.stdout:
        await process.stdout.receive_some(1)
    await trio.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def _random(target: Target, plan: StormPlan) -> None:
    """``concurrency`` clients at a time, one request after the other."""
    chance = random.Random(plan.seed)
    left = iter(range(plan.requests))

    async def client() -> None:
        for _ in left:
            path = chance.choice(list(BODIES))
            body = request_body(path, stream=chance.random() < 0.5, max_tokens=LONG)
            stay_s = chance.uniform(0, plan.life_s)
            await _leave_after(target, path, body, chance.choice(WAYS), stay_s)

    async with trio.open_nursery() as nursery:
        for _ in range(plan.concurrency):
            nursery.start_soon(client)


#: Ways of leaving. ``stall`` stops reading first; ``cancel`` asks the server by the request's id.
WAYS = ("fin", "rst", "half_close", "stall", "cancel")


async def _leave_after(target: Target, path: str, body: object, way: str, stay_s: float) -> None:
    try:
        async with await target.connect() as connection:
            with trio.move_on_after(stay_s):
                await connection.send("POST", path, body)
                if way == "stall":
                    await trio.sleep_forever()
                while await connection.read() is not None:
                    pass
                return
            if way == "cancel" and connection.request_id is not None:
                async with await target.connect() as other:
                    await other.send("POST", f"/v1/requests/{connection.request_id}/cancel")
                    await other.read_all()
            elif way == "rst":
                await connection.rst()
            elif way == "half_close":
                await connection.half_close()
            else:
                await connection.fin()
    except ENDED:
        pass


async def _ask(target: Target, path: str, body: object) -> None:
    """Ask and read to the end, or to whatever ends it."""
    try:
        async with await target.connect() as connection:
            await connection.send("POST", path, body)
            await connection.read_all()
    except ENDED:
        pass
