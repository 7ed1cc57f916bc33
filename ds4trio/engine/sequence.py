"""One job as the worker sees it: its tokens, its state, its counts.

Knows nothing of batches, scheduling or threads.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ds4trio.engine.job import EndReason, JobReport, PrefillProgress, TokenEvent
from ds4trio.models.base import Chunk

if TYPE_CHECKING:
    from ds4trio.engine.messages import Job
    from ds4trio.models.base import SequenceState


class JobSequence:
    """A job in the queue or in a place. Runs on: worker.

    Life: made, ``admit``, then for each forward ``next_chunk`` followed by ``computed`` and, where
    the chunk asked for logits, ``append`` with the token sampled from them (or ``waste`` instead
    of both), and ``release`` at any time.
    """

    def __init__(self, job: Job, *, max_unread_tokens: int) -> None:
        self.job = job
        self.sampling = job.request.sampling
        self.rng = random.Random(self.sampling.seed)
        self._prompt = job.request.token_ids
        self._max_unread_tokens = max_unread_tokens
        self._state: SequenceState | None = None
        self._admitted_at: float | None = None
        self._last_token = -1
        self._prompt_computed = 0
        self._generated = 0
        self._taken = 0
        self._wasted_prompt = 0
        self._wasted_generated = 0

    @property
    def prompt_left(self) -> int:
        return len(self._prompt) - self._prompt_computed

    @property
    def paused(self) -> bool:
        return self._generated - self._taken >= self._max_unread_tokens

    @property
    def forbidden_ids(self) -> frozenset[int]:
        """What must not be sampled next: the stop ids, before ``min_tokens`` tokens."""
        request = self.job.request
        return request.stop_ids if self._generated < request.min_tokens else frozenset()

    @property
    def progress(self) -> PrefillProgress:
        return PrefillProgress(self._prompt_computed, len(self._prompt))

    def admit(self, state: SequenceState, at: float) -> None:
        self._state = state
        self._admitted_at = at

    def next_chunk(self, prompt_tokens: int) -> Chunk:
        """The next ``prompt_tokens`` of the prompt, or (0) the last sampled token."""
        assert self._state is not None
        if not prompt_tokens:
            return Chunk(self._state, (self._last_token,), logit_rows=1)
        start = self._prompt_computed
        piece = self._prompt[start : start + prompt_tokens]
        return Chunk(self._state, piece, logit_rows=int(prompt_tokens == self.prompt_left))

    def computed(self, prompt_tokens: int) -> None:
        """A forward with ``next_chunk(prompt_tokens)`` has succeeded."""
        self._prompt_computed += prompt_tokens

    def waste(self, prompt_tokens: int) -> None:
        """As ``computed``, but the reader had left before the forward ended."""
        self._prompt_computed += prompt_tokens
        self._wasted_prompt += prompt_tokens
        self._wasted_generated += not prompt_tokens

    def append(self, token_id: int, at: float) -> TokenEvent | EndReason:
        """Take in a sampled token: to be published, or the end (a stop id is not published)."""
        if token_id in self.job.request.stop_ids:
            return EndReason.STOP_ID
        self._last_token = token_id
        self._generated += 1
        return TokenEvent(token_id, at)

    @property
    def is_full(self) -> bool:
        """All tokens that were asked for are there."""
        return self._generated >= self.job.max_tokens

    def taken(self, tokens: int) -> None:
        """The reader took so many."""
        self._taken += tokens

    def release(self, at: float) -> JobReport:
        """Let go of the state; the sequence is over."""
        self._state = None
        job = self.job
        left_at = job.ending_at if job.ending is EndReason.CANCELLED else None
        return JobReport(
            prompt_tokens=len(self._prompt),
            computed_prompt_tokens=self._prompt_computed,
            cached_prompt_tokens=0,
            generated_tokens=self._generated,
            wasted_prompt_tokens=self._wasted_prompt,
            wasted_generated_tokens=self._wasted_generated,
            queued_s=(at if self._admitted_at is None else self._admitted_at) - job.submitted_at,
            release_s=None if left_at is None else at - left_at,
        )
