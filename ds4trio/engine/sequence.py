"""One job as the worker sees it: its tokens, its state, its counts.

Knows nothing of batches, scheduling or threads.
"""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ds4trio.engine.drafting import Drafting
from ds4trio.engine.guide import Guide
from ds4trio.engine.job import (
    EndReason,
    JobReport,
    PrefillProgress,
    PromptToken,
    TokenEvent,
    TopLogprobs,
)
from ds4trio.engine.logprobs import logprobs
from ds4trio.engine.penalties import Penalties
from ds4trio.errors import Ds4TrioError
from ds4trio.models.base import Chunk, TrialState

if TYPE_CHECKING:
    from ds4trio.cache.words import CacheSource
    from ds4trio.engine.fair_queue import Share
    from ds4trio.engine.messages import Job
    from ds4trio.models.base import DraftState, SequenceState
    from ds4trio.request import SamplingParams

logger = logging.getLogger("ds4trio.engine")


class JobSequence:
    """A job in the queue or in a place. Runs on: worker.

    Life: made, ``admit``, then for each forward ``next_chunk`` followed by ``computed`` and, once
    the prompt is done, ``adjust_`` and ``append`` with the token sampled (or ``waste`` instead of
    all that), and ``release`` at any time.
    """

    def __init__(self, job: Job, *, max_unread_tokens: int) -> None:
        self.job = job
        request = job.request
        self.rng = random.Random(request.sampling.seed)
        self._prompt = tuple(job.request.token_ids)
        self._generated_ids: list[int] = []
        self._max_unread_tokens = max_unread_tokens
        self._guide = Guide(job.request) if Guide.is_needed(job.request) else None
        self._spans = request.new_greedy_spans() if request.new_greedy_spans else None
        self._greedy = replace(request.sampling, temperature=0.0)
        self._has_penalties = Penalties.are_in(request.sampling)
        self._penalties: Penalties | None = None  # made when the first logits are there
        self.error: Ds4TrioError | None = None
        """Why it cannot go on, if that is its own fault."""
        self.drafting: Drafting | None = None
        """Its guesses, if there are any."""
        self.cached_prompt_tokens = 0
        self.cached_from: CacheSource | None = None
        self._state: SequenceState | None = None
        self._admitted_at: float | None = None
        self._last_token = -1
        self._prompt_computed = 0
        self._taken = 0
        self._wasted_prompt = 0
        self._wasted_generated = 0

    @property
    def sampling(self) -> SamplingParams:
        """For the next token."""
        greedy = self._spans is not None and self._spans.is_greedy
        return self._greedy if greedy else self.job.request.sampling

    @property
    def share(self) -> Share:
        return self.job.request.share

    @property
    def prompt(self) -> tuple[int, ...]:
        return self._prompt

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer so far; the state may not know the last one yet."""
        return (*self._prompt, *self._generated_ids)

    @property
    def most_tokens(self) -> int:
        """How long it can get."""
        return len(self._prompt) + self.job.max_tokens

    @property
    def state(self) -> SequenceState:
        """Only while it has a place."""
        assert self._state is not None
        return self._state

    @property
    def prompt_left(self) -> int:
        return len(self._prompt) - self._prompt_computed

    @property
    def paused(self) -> bool:
        return len(self._generated_ids) - self._taken >= self._max_unread_tokens

    @property
    def adjusts_logits(self) -> bool:
        """Whether ``adjust_`` may have something to do for the next token."""
        return self._has_penalties or (self._guide is not None and self._guide.may_forbid)

    @property
    def is_complete(self) -> bool:
        """Nothing may follow."""
        return self._guide is not None and self._guide.is_complete

    @property
    def progress(self) -> PrefillProgress:
        return PrefillProgress(
            self._prompt_computed,
            len(self._prompt),
            cached=self.cached_prompt_tokens,
            cached_from=self.cached_from,
        )

    def admit(self, state: SequenceState, at: float) -> None:
        self._state = state
        self._admitted_at = at

    def go_on_from(self, state: SequenceState, source: CacheSource) -> None:
        """Before anything is computed: the beginning of the prompt, as a state that knows it."""
        self._state = state
        self._prompt_computed = self.cached_prompt_tokens = state.length
        self.cached_from = source

    def next_chunk(self, prompt_tokens: int) -> Chunk:
        """The next ``prompt_tokens`` of the prompt, or (0) the last sampled token."""
        assert self._state is not None
        if not prompt_tokens and self.drafting is not None:
            return self.drafting.chunk(self._last_token)
        if not prompt_tokens:
            return Chunk(self._state, (self._last_token,), logit_rows=1)
        start = self._prompt_computed
        piece = self._prompt[start : start + prompt_tokens]
        if self.job.request.prompt_logprobs:
            return Chunk(self._state, piece, logit_rows=len(piece))
        return Chunk(self._state, piece, logit_rows=int(prompt_tokens == self.prompt_left))

    def computed(self, prompt_tokens: int) -> None:
        """A forward with ``next_chunk(prompt_tokens)`` has succeeded."""
        if self.drafting is not None:
            after = self._prompt_computed + 1
            self.drafting.append(*self._prompt[after : after + prompt_tokens])
        self._prompt_computed += prompt_tokens

    def waste(self, prompt_tokens: int) -> None:
        """As ``computed``, but the reader had left before the forward ended."""
        self._prompt_computed += prompt_tokens
        self._wasted_prompt += prompt_tokens
        self._wasted_generated += not prompt_tokens

    def prompt_logprobs(self, logits: torch.Tensor) -> PrefillProgress:
        """The ``progress`` after a chunk, whose logits these are, with the prompt's logprobs.

        Shapes: logits (tokens of the chunk, vocabulary).
        """
        start = self._prompt_computed - len(logits)
        # What the last row predicts is not in the prompt any more if that is done.
        known = self._prompt[start + 1 : self._prompt_computed + 1]
        tokens = [] if start else [PromptToken(self._prompt[0], None)]
        if known:
            count = self.job.request.logprobs or 0
            scores = logprobs(logits[: len(known)], known, [count] * len(known))
            tokens += [PromptToken(i, *score) for i, score in zip(known, scores, strict=True)]
        return PrefillProgress(self._prompt_computed, len(self._prompt), tuple(tokens))

    def adjust_(self, logits: torch.Tensor) -> None:
        """Change the next token's logits as asked; what fails makes them unusable, see ``error``.

        Shapes: logits (vocabulary,).
        """
        try:
            if self._has_penalties:
                if self._penalties is None:
                    self._penalties = Penalties(self.sampling, self._prompt, logits)
                self._penalties.apply_(logits)
            if self._guide is not None:
                self._guide.apply_(logits)
        except Ds4TrioError as error:
            self.error = error
        except Exception:
            # A grammar's or a setting's fault, or a bug: of this sequence, whichever it is.
            logger.exception("a sequence ended: its next token's logits could not be adjusted")
            self.error = Ds4TrioError("The answer could not be continued as asked.")
        if self.error is not None:
            logits.fill_(torch.nan)

    def append(
        self, token_id: int, at: float, logprob: float | None = None, top: TopLogprobs = ()
    ) -> TokenEvent | EndReason:
        """Take in a sampled token: to be published, or the end (a stop id is not published)."""
        if token_id in self.job.request.stop_ids:
            return EndReason.STOP_ID
        self._last_token = token_id
        self._generated_ids.append(token_id)
        if self._penalties is not None:
            self._penalties.append(token_id)
        if self._guide is not None:
            self._guide.append(token_id)
        if self._spans is not None:
            self._spans.append(token_id)
        if self.drafting is not None:
            self.drafting.append(token_id)
        return TokenEvent(token_id, at, logprob, top)

    def start_drafting(self, memory: DraftState) -> None:
        """From the next chunk on, let ``memory`` be told of what is computed."""
        assert isinstance(self._state, TrialState)
        self.drafting = Drafting(self._state, memory)

    def take_draft(self) -> bool:
        """Whether the token after the last one can be sampled from the same forward: see
        `Drafting.take`.
        """
        if self.drafting is None:
            return False
        if self.job.ending is not None:
            self.drafting.settle()
            return False
        return self.drafting.take(self._last_token)

    def settle(self) -> None:
        """Be sure that the state holds no guesses."""
        if self.drafting is not None:
            self.drafting.settle()

    @property
    def tokens_left(self) -> int:
        """How many more are asked for."""
        return self.job.max_tokens - len(self._generated_ids)

    @property
    def is_full(self) -> bool:
        """All tokens that were asked for are there."""
        return self.tokens_left <= 0

    def taken(self, tokens: int) -> None:
        """The reader took so many."""
        self._taken += tokens

    def release(self, at: float) -> JobReport:
        """Let go of all but the counts; the sequence is over."""
        self._state = self._guide = self._penalties = self._spans = self.drafting = None
        job = self.job
        left_at = job.ending_at if job.ending is EndReason.CANCELLED else None
        return JobReport(
            prompt_tokens=len(self._prompt),
            computed_prompt_tokens=self._prompt_computed - self.cached_prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            cached_from=self.cached_from,
            generated_tokens=len(self._generated_ids),
            wasted_prompt_tokens=self._wasted_prompt,
            wasted_generated_tokens=self._wasted_generated,
            queued_s=(at if self._admitted_at is None else self._admitted_at) - job.submitted_at,
            release_s=None if left_at is None else at - left_at,
        )
