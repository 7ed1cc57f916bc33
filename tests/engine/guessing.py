"""A model whose every token depends on all before it, and a drafter that is sometimes right.

Exact: what it computes does not depend on how tokens were cut into chunks. Runs without a loop.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch

from ds4trio.engine.job import TokenEvent, TokensEnded
from ds4trio.engine.messages import Signal, StepReport
from ds4trio.engine.worker import Limits, Worker
from ds4trio.models.base import Rows, StateLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ds4trio.engine.job import TopLogprobs
    from ds4trio.engine.messages import FromWorker, Job, ToWorker
    from ds4trio.models.base import Chunk, DraftState

V = 6


@cache
def scores(history: tuple[int, ...], whose: str = "model") -> tuple[float, ...]:
    """Logits after a history, the model's or what the drafter adds to them."""
    rng = random.Random(f"{whose} {history}")
    return tuple(rng.gauss(0, 2) for _ in range(V))


class HistoryState:
    """All tokens so far. What is fed while it holds on can be taken back, and nothing else."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._held: tuple[int, int] | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    nbytes = 0

    def allocate(self, tokens: int) -> None: ...

    def save(self, start: int) -> dict[str, torch.Tensor]:
        return {"tokens": torch.tensor(self.tokens[start:])[:, None]}

    def restore(self, pieces: Sequence[Mapping[str, torch.Tensor]], length: int) -> None:
        self.tokens = [i for piece in pieces for i in piece["tokens"][:, 0].tolist()]

    def hold(self, tokens: int) -> None:
        self._held = (self.length, tokens)

    def settle(self, length: int) -> None:
        assert self._held is not None
        start, most = self._held
        assert start <= length <= self.length <= start + most
        del self.tokens[length:]
        self._held = None


class Watching:
    """What a sequence went on with, and how often the drafter was told."""

    def __init__(self) -> None:
        self.history: tuple[int, ...] = ()
        self.next_id: int | None = None

    def observe(self, features: torch.Tensor, next_ids: Sequence[int]) -> None:
        assert len(features) == len(next_ids)
        for row, next_id in zip(features.tolist(), next_ids, strict=True):
            history = tuple(row[: row[-1]])
            # Nothing is left out, and what was foretold came.
            assert self.next_id is None or history == (*self.history, self.next_id)
            self.history, self.next_id = history, next_id


@dataclass
class GuessingDrafter:
    """Its logits are the model's, and ``error`` times something of its own."""

    tokens: int
    error: float
    called: Callable[[str], None]

    def new_state(self) -> Watching:
        return Watching()

    def draft(
        self, states: Sequence[DraftState], choose: Callable[[torch.Tensor], Sequence[int]]
    ) -> list[list[int]]:
        self.called("draft")
        histories = []
        for state in states:
            assert isinstance(state, Watching)
            assert state.next_id is not None
            histories.append((*state.history, state.next_id))
        drafts: list[list[int]] = [[] for _ in states]
        for _ in range(self.tokens):
            own = [scores(history, "drafter") for history in histories]
            true = [scores(history) for history in histories]
            ids = choose(torch.tensor(true) + self.error * torch.tensor(own))
            for guessed, token_id in zip(drafts, ids, strict=True):
                guessed.append(token_id)
            histories = [(*h, token_id) for h, token_id in zip(histories, ids, strict=True)]
        return drafts


@dataclass
class GuessingModel:
    """Without ``drafts`` it makes no guesses. ``called`` hears of each step of a forward."""

    drafts: int = 0
    error: float = 1.0
    called: Callable[[str], None] = lambda _: None
    context_tokens: int = 64
    states: list[HistoryState] = field(default_factory=list)
    forwards: int = 0
    vocab_size: int = V
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    state_layout: StateLayout = field(default_factory=lambda: StateLayout({"tokens": Rows(1, 8)}))

    def __post_init__(self) -> None:
        makes = self.drafts > 0
        self.drafter = GuessingDrafter(self.drafts, self.error, self.called) if makes else None

    def new_state(self) -> HistoryState:
        self.states.append(HistoryState())
        return self.states[-1]

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        return self.logits(self.advance(chunks), chunks)

    def advance(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        self.called("advance")
        self.forwards += 1
        features = []
        for chunk in chunks:
            assert isinstance(chunk.state, HistoryState)
            for token_id in chunk.token_ids:
                chunk.state.tokens.append(token_id)
                history = chunk.state.tokens
                assert len(history) <= self.context_tokens
                room = [0] * (self.context_tokens - len(history))
                features.append([*history, *room, len(history)])
        return torch.tensor(features)

    def logits(self, features: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
        self.called("logits")
        rows: list[tuple[float, ...]] = []
        start = 0
        for chunk in chunks:
            stop = start + len(chunk.token_ids)
            wanted = features[stop - chunk.logit_rows : stop].tolist()
            rows += [scores(tuple(row[: row[-1]])) for row in wanted]
            start = stop
        return torch.tensor(rows, dtype=torch.float32).reshape(-1, V)


def run(
    model: GuessingModel,
    jobs: list[Job],
    *,
    then: Callable[[list[StepReport]], list[Job]] = lambda _: [],
    max_running: int = 8,
    chunk: int = 4,
    cache: bool = False,
) -> list[StepReport]:
    """All jobs to their end, and those that come then, on this thread."""
    reports: list[StepReport] = []

    class Source:
        def __init__(self) -> None:
            self._waits = self._said()

        def _said(self) -> Iterator[list[ToWorker]]:
            yield [*jobs]
            yield [Signal.WAKE, *then(reports)]
            yield [Signal.STOP]

        def take_ready(self) -> list[ToWorker]:
            return []

        def wait(self) -> list[ToWorker]:
            return next(self._waits)

    def publish(item: FromWorker) -> None:
        if isinstance(item, StepReport):
            reports.append(item)

    limits = Limits(max_running, chunk, 10**9, kv_budget_bytes=10**9, prefix_cache=cache)
    Worker(lambda: model, Source(), publish, limits, threads=1).run()
    return reports


Token: TypeAlias = "tuple[int, float | None, TopLogprobs]"


def told(reports: list[StepReport], job: Job) -> tuple[list[Token], TokensEnded]:
    """A job's tokens with their logprobs, and its end."""
    items = [item for report in reports for item in report.deliveries.get(job, [])]
    ended = items[-1]
    assert isinstance(ended, TokensEnded)
    tokens = [item for item in items if isinstance(item, TokenEvent)]
    return [(token.token_id, token.logprob, token.top) for token in tokens], ended
