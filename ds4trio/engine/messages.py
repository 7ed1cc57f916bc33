"""What crosses between the loop and the worker, and who writes which field.

Knows nothing of trio or torch.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ds4trio.engine.job import EndReason, EngineEvent, EngineRequest, JobReport
    from ds4trio.errors import Ds4TrioError


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
    """The model is ready."""

    context_tokens: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    """This sequence alone cannot go on; the worker holds nothing of it any more."""

    error: Ds4TrioError
    report: JobReport


Delivery: TypeAlias = "EngineEvent | JobFailed"


@dataclass(slots=True)
class StepReport:
    """What happened since the last report. ``prompt_tokens`` were computed by the forwards."""

    forwards: int = 0
    prompt_tokens: int = 0
    deliveries: dict[Job, list[Delivery]] = field(default_factory=dict)

    def add(self, job: Job, item: Delivery) -> None:
        self.deliveries.setdefault(job, []).append(item)

    def __bool__(self) -> bool:
        return bool(self.forwards or self.deliveries)


FromWorker: TypeAlias = Loaded | StepReport
