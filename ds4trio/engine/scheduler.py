"""Who runs, who waits, and what the next step computes. Pure policy.

Rules:

1. Admission is fair (see `fair_queue`; among one owner's, first come, first served), into at most
   ``max_running`` places, and for as long as whoever asks says that there is room: whose turn it
   is, and must wait for room, keeps its turn and lets all others wait too, so that it is not
   overtaken for ever.
2. Every running sequence whose prompt is done decodes in every step, unless its reader is behind.
3. Beside them a step computes a bounded number of prompt tokens, of the sequence admitted first,
   then (what is left of the budget) of the next ones. So a decode never waits for more than one
   bounded chunk, and the oldest prompt always advances: nobody starves.
4. That number is ``prefill_chunk_tokens``, or fewer: what adds ``prefill_target_s`` to a step, or
   as much as the step takes without, if that is more, as steps of late were measured. So decodes
   are late by that target, or keep half their pace. Prompts keep four fifths of their pace alone
   while a step of decodes takes no more than a quarter of the target, and never less than half.

Knows nothing of tokens, models, threads or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ds4trio.engine.fair_queue import FairQueue, Shared
from ds4trio.engine.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Schedulable(Shared, Protocol):
    """What the policy looks at."""

    @property
    def prompt_left(self) -> int:
        """Prompt tokens not computed yet."""
        ...

    @property
    def paused(self) -> bool:
        """Its reader has not taken what is ready: it keeps its place but computes nothing."""
        ...


S = TypeVar("S", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class Plan(Generic[S]):
    """One step: one token more for each of ``decodes``, so many of their prompt for ``prefills``.

    The two are disjoint; both keep the order of admission.
    """

    decodes: list[S]
    prefills: list[tuple[S, int]]

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prefills)

    def __iter__(self) -> Iterator[S]:
        yield from self.decodes
        for sequence, _ in self.prefills:
            yield sequence


class Scheduler(Generic[S]):
    """The places and the queue. Runs on: worker (but it is plain synchronous code)."""

    def __init__(
        self, *, max_running: int, prefill_chunk_tokens: int, prefill_target_s: float = 0.0
    ) -> None:
        self._max_running = max_running
        self._pace = Pace(prefill_target_s, prefill_chunk_tokens)
        self._waiting: FairQueue[S] = FairQueue()
        self._running: dict[S, None] = {}  # a dict, for its order and for removal at once
        self._kept_turn: S | None = None  # there was no room for it
        self._must_wait = False  # until somebody ends

    @property
    def waiting(self) -> list[S]:
        return list(self._waiting)

    @property
    def running(self) -> list[S]:
        return list(self._running)

    @property
    def has_work(self) -> bool:
        """Whether ``admit`` or ``plan`` would find any."""
        has_place = len(self._running) < self._max_running and not self._must_wait
        return (has_place and self._next() is not None) or any(
            sequence.prompt_left or not sequence.paused for sequence in self._running
        )

    def add(self, sequence: S) -> None:
        """Queue it."""
        self._waiting.add(sequence)

    def remove(self, sequence: S) -> None:
        """Forget it, wherever it is. Its place is free at once."""
        self._must_wait = False
        if sequence in self._running:
            del self._running[sequence]
            self._waiting.end(sequence)
        else:
            self._waiting.remove(sequence)

    def admit(self, has_room: Callable[[S], bool] = lambda _: True) -> list[S]:
        """Move as many as there are free places from the queue into them; says which.

        ``has_room`` is asked of each; whoever it refuses is asked for again when somebody has gone.
        """
        admitted: list[S] = []
        while len(self._running) < self._max_running and not self._must_wait:
            sequence = self._next()
            if sequence is None:
                break
            if not has_room(sequence):
                self._must_wait, self._kept_turn = True, sequence
                break
            admitted.append(sequence)
            self._waiting.start(sequence)
            self._running[sequence] = None
        return admitted

    def _next(self) -> S | None:
        kept = self._kept_turn
        return kept if kept is not None and kept in self._waiting else self._waiting.next()

    def plan(self) -> Plan[S]:
        """The next step, without changing anything; empty (false) if there is nothing to do."""
        decodes = [s for s in self._running if not s.prompt_left and not s.paused]
        prefills: list[tuple[S, int]] = []
        budget = self._pace.prompt_tokens(len(decodes), alone=not decodes and not self._waiting)
        for sequence in self._running:
            if sequence.prompt_left and budget:
                chunk = min(budget, sequence.prompt_left)
                prefills.append((sequence, chunk))
                budget -= chunk
        return Plan(decodes, prefills)

    def took(self, plan: Plan[S], seconds: float) -> None:
        """How long a step took: what the next ones' sizes go by."""
        self._pace.took(len(plan.decodes), sum(tokens for _, tokens in plan.prefills), seconds)
