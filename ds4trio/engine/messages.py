"""What crosses between the loop and the worker, and who writes which field.

Knows nothing of trio or torch.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, get_args

from ds4trio.cache.words import CacheSource, EvictionReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.engine.job import EndReason, EngineEvent, EngineRequest, JobReport
    from ds4trio.errors import Ds4TrioError
    from ds4trio.models.base import StateLayout


@dataclass(slots=True, eq=False)
class Job:
    """One request under way: the one object that both threads hold.

    ``ending`` is the job's flag. The loop sets it, once, by ``end``; the worker only reads it.
    """

    request: EngineRequest
    max_tokens: int
    submitted_at: float
    ending: EndReason | None = None
    ending_at: float | None = None

    def end(self, reason: EndReason, at: float) -> None:
        """Say that no more is wanted. The first reason stays. Runs on: trio."""
        if self.ending is None:
            self.ending_at = at
            self.ending = reason


@dataclass(frozen=True, slots=True)
class Taken:
    """The reader took ``tokens`` tokens from its stream (like HTTP/2's WINDOW_UPDATE)."""

    job: Job
    tokens: int


class Signal(enum.Enum):
    #: A flag was set: look.
    WAKE = enum.auto()
    #: Let go of everything and return.
    STOP = enum.auto()


ToWorker: TypeAlias = Job | Taken | Signal


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is ready. ``state_layout`` and ``kv_budget_bytes`` tell what fits the memory."""

    context_tokens: int
    vocab_size: int
    state_layout: StateLayout
    kv_budget_bytes: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    """This sequence alone cannot go on; the worker holds nothing of it any more."""

    error: Ds4TrioError
    report: JobReport


Delivery: TypeAlias = "EngineEvent | JobFailed"


@dataclass(frozen=True, slots=True)
class KvFigures:
    """The memory of sequences' states, and what came of looking for prefixes.

    ``running_bytes`` are granted to running sequences: what they hold, or are sure to get. ``hits``
    by where the prefix was found, ``evictions`` by why.
    """

    budget_bytes: int = 0
    running_bytes: int = 0
    cached_bytes: int = 0
    hits: Mapping[CacheSource, int] = field(
        default_factory=lambda: dict.fromkeys(get_args(CacheSource), 0)
    )
    misses: int = 0
    evictions: Mapping[EvictionReason, int] = field(
        default_factory=lambda: dict.fromkeys(get_args(EvictionReason), 0)
    )


@dataclass(slots=True)
class StepReport:
    """What happened since the last report. ``prompt_tokens`` were computed by the forwards, and so
    were ``drafted_tokens``, which were guesses; of these ``accepted_tokens`` proved right.
    """

    forwards: int = 0
    prompt_tokens: int = 0
    deliveries: dict[Job, list[Delivery]] = field(default_factory=dict)
    kv: KvFigures | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, job: Job, item: Delivery) -> None:
        self.deliveries.setdefault(job, []).append(item)

    def __bool__(self) -> bool:
        return bool(self.forwards or self.deliveries)


FromWorker: TypeAlias = Loaded | StepReport
