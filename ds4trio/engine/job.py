"""What passes between those who ask for tokens and the worker that computes them.

Knows nothing of text, HTTP, trio or torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from ds4trio.request import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to continue.

    ``max_tokens`` None: as far as the context allows. ``stop_ids`` end the sequence and are not
    part of it; they are not sampled before ``min_tokens`` tokens.
    """

    token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()


class EndReason(StrEnum):
    """Why the worker let go of a sequence."""

    STOP_ID = "stop_id"
    LENGTH = "length"
    #: The reader had enough (a stop string, say): the answer is complete.
    STOPPED = "stopped"
    #: The reader left.
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a sequence took. Units: tokens; seconds.

    *Wasted* is what was computed after the reader had left. ``release_s`` runs from that moment
    until the worker had let go (None if the reader did not leave).
    """

    prompt_tokens: int
    computed_prompt_tokens: int
    cached_prompt_tokens: int
    generated_tokens: int
    wasted_prompt_tokens: int = 0
    wasted_generated_tokens: int = 0
    queued_s: float = 0.0
    release_s: float | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One sampled token. ``at``: ``time.perf_counter()`` when it was sampled."""

    token_id: int
    at: float


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """``done`` of ``total`` prompt tokens computed; ``done`` 0 says the sequence was admitted."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TokensEnded:
    """Always the last event: the worker holds nothing of this sequence any more."""

    reason: EndReason
    report: JobReport


EngineEvent: TypeAlias = TokenEvent | PrefillProgress | TokensEnded
