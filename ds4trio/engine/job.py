"""What passes between those who ask for tokens and the worker that computes them.

Knows nothing of text, HTTP, trio or torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ds4trio.engine.fair_queue import Share
from ds4trio.request import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ds4trio.cache.words import CacheSource


class TokenMatcher(Protocol):
    """How far one sequence has come in its constraint. Runs on: worker."""

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, by id; ids beyond the array's end may not.

        Raises: RequestError, if the constraint cannot be held any longer.
        """
        ...

    @property
    def may_end(self) -> bool:
        """Whether the sequence may end here."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether it must: nothing may follow."""
        ...

    def accept(self, token_id: int) -> None:
        """Take in the next token, which was allowed. What goes wrong, ``allowed`` will say."""
        ...


class TokenConstraint(Protocol):
    """What a sequence's tokens must obey (a grammar, say). Any number of sequences may share it."""

    def new_matcher(self) -> TokenMatcher:
        """At the start. Runs on: worker. Raises: RequestError."""
        ...


class GreedySpans(Protocol):
    """Where one sequence takes the likeliest token, whatever its temperature. Runs on: worker."""

    @property
    def is_greedy(self) -> bool:
        """Whether it does for the next token."""
        ...

    def append(self, token_id: int) -> None:
        """The sequence has one more token."""
        ...


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to continue.

    ``max_tokens`` None: as far as the context and a fair share of the memory allow; 0: only the
    prompt is computed. ``stop_ids`` end the sequence and are not part of it; they are not sampled
    before ``min_tokens`` tokens, nor where the constraint does not let the sequence end.

    A sequence with a ``thinking_end`` begins within thoughts, which end when these tokens have been
    sampled, one after the other. Thoughts are under no constraint; after ``thinking_budget`` tokens
    the ``thinking_end`` is forced. The ``constraint`` holds for what follows.

    ``new_greedy_spans``, if there are any, makes what tells where sampling is greedy.

    ``stable_prefixes`` are lengths at which later prompts are likely to part from this one (the end
    of the system prompt and of what it says of tools, the end of a turn): places worth keeping for
    a model that can only go on from where it was saved.

    ``share``: whose it is, which decides when it has its turn.

    ``logprobs`` asks for each sampled token's, and those of so many likeliest tokens at its place.
    They are natural logarithms of the model's own distribution, before temperature, filters,
    penalties and constraint have changed it. ``prompt_logprobs`` asks for the same of the prompt.
    """

    token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: bool = False
    constraint: TokenConstraint | None = None
    thinking_end: tuple[int, ...] = ()
    thinking_budget: int | None = None
    new_greedy_spans: Callable[[], GreedySpans | None] | None = None
    stable_prefixes: tuple[int, ...] = ()
    share: Share = field(default_factory=Share)


class EndReason(StrEnum):
    """Why the worker let go of a sequence."""

    STOP_ID = "stop_id"
    LENGTH = "length"
    #: The constraint lets nothing follow: the answer is complete.
    COMPLETE = "complete"
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
    cached_from: CacheSource | None = None
    wasted_prompt_tokens: int = 0
    wasted_generated_tokens: int = 0
    queued_s: float = 0.0
    release_s: float | None = None


#: Token ids and their logprobs, likeliest first (of equals, in any order).
TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One sampled token. ``at``: ``time.perf_counter()`` when it was sampled.

    ``logprob`` and ``top``: see `EngineRequest`; None and empty if not asked for. ``logprob`` may
    be -inf where a token was forced.
    """

    token_id: int
    at: float
    logprob: float | None = None
    top: TopLogprobs = ()


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt; ``logprob`` is None for the first, which nothing predicts."""

    token_id: int
    logprob: float | None
    top: TopLogprobs = ()


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """``done`` of ``total`` prompt tokens computed or reused; the first one says that the sequence
    was admitted, and what could be reused at once. Of them ``cached`` were reused, and
    ``cached_from`` where they were found.

    ``logprobs``, if asked for: those of the prompt's next tokens. All events together have every
    token of the prompt once, in order.
    """

    done: int
    total: int
    logprobs: tuple[PromptToken, ...] = ()
    cached: int = 0
    cached_from: CacheSource | None = None


@dataclass(frozen=True, slots=True)
class TokensEnded:
    """Always the last event: the worker holds nothing of this sequence any more."""

    reason: EndReason
    report: JobReport


EngineEvent: TypeAlias = TokenEvent | PrefillProgress | TokensEnded
