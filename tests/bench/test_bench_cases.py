"""What benchmarks say of servers whose speed is known by hand. Time is a mock, HTTP is real."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import h11
import pytest
import trio
import trio.testing

from ds4trio.bench.answer import Answer, prompt
from ds4trio.bench.cases import Case, Measured, Round, measure, run_case
from ds4trio.bench.client import Connection, Target
from ds4trio.bench.figures import quantile
from ds4trio.bench.plans import PLANS, CasePlan, chosen_plan
from ds4trio.bench.tables import case_table, compare_table, comparison
from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from trio.testing import MockClock


@dataclass
class PacedServer:
    """The first token ``first_s`` after the request, a token each ``gap_s`` from then on."""

    nursery: trio.Nursery
    first_s: float = 0.5
    gap_s: float = 0.1
    status: int = 200
    with_usage: bool = True
    #: Of each request: when it came, its prompt and how many tokens it wanted.
    asked: list[tuple[float, str, int]] = field(default_factory=list)

    async def connect(self) -> Connection:
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self._serve, theirs)
        stream: Any = ours
        return Connection(Target("test", 80), stream, stream)

    @property
    def target(self) -> Target:
        """As the loads want it, who only connect."""
        found: Any = SimpleNamespace(connect=self.connect, get=self._get, url="http://test")
        target: Target = found
        return target

    async def _get(self, path: str) -> bytes:
        await trio.lowlevel.checkpoint()
        assert path == "/v1/models"
        return b'{"data": [{"id": "a-model"}]}'

    async def _serve(self, stream: trio.StapledStream[Any, Any]) -> None:
        http = h11.Connection(h11.SERVER)
        body = b""
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await stream.receive_some(65536)))
            elif isinstance(event, h11.Data):
                body += event.data
        fields = json.loads(body)
        assert (fields["model"], fields["temperature"], fields["stream"]) == ("a-model", 0, True)
        self.asked.append((trio.current_time(), fields["prompt"], fields["max_tokens"]))

        async def send(event: Any) -> None:  # noqa: ANN401 - h11's events have no common type
            await stream.send_all(http.send(event) or b"")

        await send(h11.Response(status_code=self.status, headers=[]))
        if self.status == 200:
            await self._answer(fields["max_tokens"], send)
        else:
            await send(h11.Data(data=b'{"error": "no"}'))
        await send(h11.EndOfMessage())

    async def _answer(self, tokens: int, send: Any) -> None:  # noqa: ANN401 - a closure
        await trio.sleep(self.first_s)
        for index in range(tokens):
            event = json.dumps({"choices": [{"text": "a "}]}).encode()
            # In two pieces, as the network may have it: the token is there with the second.
            await send(h11.Data(data=b"data: " + event[:5]))
            await send(h11.Data(data=event[5:] + b"\n\n"))
            if index < tokens - 1:
                await trio.sleep(self.gap_s)
        last: dict[str, Any] = {"choices": []}
        if self.with_usage:
            last["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens + 1}
        await send(h11.Data(data=f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode()))


@pytest.fixture
async def servers(nursery: trio.Nursery) -> list[PacedServer]:
    return [PacedServer(nursery), PacedServer(nursery, first_s=1.5, gap_s=0.3)]


async def test_a_case_by_hand(autojump_clock: MockClock, servers: list[PacedServer]) -> None:
    """4 streams of 11 tokens: first after 0.5 s, the others in 1.0 s. The server counts 12 each
    (one had no text), and 7 of the prompt: 48 tokens in 1.5 s, 28 of prompts in 0.5 s.
    """
    server = servers[0]
    done = await run_case(server.target, "a-model", Case(4, 20, 11), "seed")
    assert done.seconds == pytest.approx(1.5)
    figures = Measured(Case(4, 20, 11), (done,)).as_dict()
    assert figures == {
        "streams": 4,
        "prompt_tokens": 7,
        "generated_tokens": 12,
        "rounds": 1,
        "tokens_per_s": pytest.approx(32),
        "prompt_tokens_per_s": pytest.approx(56),
        "first_token_p50_s": pytest.approx(0.5),
        "first_token_max_s": pytest.approx(0.5),
        "inter_token_p50_s": pytest.approx(0.1),
        "inter_token_p99_s": pytest.approx(0.1),
    }


async def test_a_server_that_does_not_count(
    autojump_clock: MockClock, servers: list[PacedServer]
) -> None:
    """Pieces of text are counted instead, and words of the prompt."""
    servers[0].with_usage = False
    done = await run_case(servers[0].target, "a-model", Case(1, 20, 5), "seed")
    assert [(a.prompt_tokens, a.tokens) for a in done.answers] == [(20, 5)]


async def test_servers_take_turns(autojump_clock: MockClock, servers: list[PacedServer]) -> None:
    """Three times as slow, in each pair of rounds; no two prompts begin alike."""
    a, b = servers
    cases = [Case(1, 30, 5), Case(2, 30, 5)]
    ours, theirs = await measure([a.target, b.target], cases, rounds=3, seed=5)
    # The warm-up is short.
    assert [tokens for _, _, tokens in a.asked] == [2, 2, 2, *[5, 5, 5] * 3]
    # By the clock: the case of one stream, then that of two, of each server.
    turns = sorted([(at, 0) for at, _, _ in a.asked] + [(at, 1) for at, _, _ in b.asked])
    assert [who for _, who in turns] == [0, 1, 0, 0, 1, 1] * 4
    assert {text for _, text, _ in a.asked} == {text for _, text, _ in b.asked}
    assert len({text for _, text, _ in a.asked}) == len(a.asked)
    rows: Any = comparison(ours, theirs)
    assert [row["a"]["streams"] for row in rows] == [1, 2]
    for row in rows:
        for figure in ("tokens_per_s", "prompt_tokens_per_s", "first_token_p50_s"):
            better = row["times_better"][figure]
            assert better == {key: pytest.approx(3) for key in ("median", "min", "max")}
    lines = compare_table(ours, theirs).splitlines()
    # 6 tokens in 0.9 s, and 2 * 6; three times that.
    assert lines[1].split()[:5] == ["1", "30", "6.67", "2.22", "3.00"]
    assert lines[2].split()[:5] == ["2", "30", "13.3", "4.44", "3.00"]
    json.dumps(rows)


async def test_what_is_no_answer(autojump_clock: MockClock, servers: list[PacedServer]) -> None:
    servers[0].status = 503
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match='503: {"error": "no"}')):
        await run_case(servers[0].target, "a-model", Case(1, 5, 5), "seed")


def test_medians_are_of_rounds() -> None:
    """The middle one of 10, 20 and 40 tokens a second; the slowest gap is the 99th percentile."""

    def one(tokens: int) -> Round:
        return Round((Answer(100, tokens, (0.25, 0.5, 1.0), 1.0),), 1.0)

    measured = Measured(Case(1, 100, 40), (one(40), one(10), one(20)))
    figures = measured.as_dict()
    assert figures["tokens_per_s"] == 20
    assert figures["prompt_tokens_per_s"] == 400
    assert (figures["inter_token_p50_s"], figures["inter_token_p99_s"]) == (0.25, 0.5)
    last = case_table([measured]).splitlines()[1].split()
    assert last == ["1", "100", "20", "20", "400", "250", "250", "250", "500"]


def test_quantiles() -> None:
    assert [quantile([3, 1, 2, 4], share) for share in (0.0, 0.5, 0.75, 0.76, 1.0)] == [
        1,
        2,
        3,
        4,
        4,
    ]
    assert quantile([], 0.5) is None


def test_prompts() -> None:
    """The same for the same seed; different from the first words on for another."""
    texts = [prompt(50, f"seed {number}") for number in range(100)]
    assert prompt(50, "seed 7") == texts[7]
    assert all(len(text.split()) == 50 for text in texts)
    assert len({text[:20] for text in texts}) == 100


def test_plans() -> None:
    options = SimpleNamespace(
        load="latency", streams="1,3", prompt_tokens=None, max_tokens=9, rounds=None, seed=4
    )
    given: Any = options
    assert chosen_plan(given) == CasePlan((1, 3), (100, 1000), 9, PLANS["latency"].rounds, 4)
    assert [case.streams for case in chosen_plan(given).cases()] == [1, 3, 1, 3]
    for name, wrong in (("streams", "1,x"), ("streams", "0"), ("max_tokens", 0), ("rounds", 0)):
        with pytest.raises(ConfigError, match=name):
            chosen_plan(SimpleNamespace(**{**vars(options), name: wrong}))  # type: ignore[arg-type]  # as argparse makes it
