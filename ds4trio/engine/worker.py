"""The loop that computes: admit, step, publish. One thread; the only one that touches torch.

::

    take messages -> let go of who is flagged, admit -> plan -> forward -> sample -> publish
         ^                                                                            |
         +----------------------------------------------------------------------------+

It blocks only where nothing can be computed. Flags are looked at before each step, right before
its forward, and right after. Knows nothing of trio or text, and how it is woken.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from ds4trio.cache.prefix import PrefixCache
from ds4trio.engine.job import EndReason, TokensEnded
from ds4trio.engine.logprobs import logprobs
from ds4trio.engine.messages import Job, JobFailed, Loaded, Signal, StepReport, Taken
from ds4trio.engine.sampler import sample
from ds4trio.engine.scheduler import Scheduler
from ds4trio.engine.sequence import JobSequence
from ds4trio.engine.speculation import Speculation, speculation
from ds4trio.engine.states import States
from ds4trio.errors import Ds4TrioError
from ds4trio.models.base import ClaimingLM
from ds4trio.models.machine import kv_budget_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ds4trio.cache.segment import SegmentStore
    from ds4trio.engine.job import TopLogprobs
    from ds4trio.engine.messages import FromWorker, ToWorker
    from ds4trio.models.base import CausalLM

logger = logging.getLogger("ds4trio.engine")


@dataclass(frozen=True, slots=True)
class Limits:
    """Units: sequences; tokens; bytes."""

    max_running: int
    prefill_chunk_tokens: int
    max_unread_tokens: int
    #: For states, of those that run and those that are kept; None: half of what is free.
    kv_budget_bytes: int | None = None
    prefix_cache: bool = True
    #: See `Pace`.
    prefill_target_s: float = 0.0


class MessageSource(Protocol):
    """Where the worker hears from the loop (``threads.Inbox``)."""

    def take_ready(self) -> list[ToWorker]: ...

    def wait(self) -> list[ToWorker]: ...


class Worker:
    """Runs on: made anywhere, ``run`` on the worker thread.

    ``publish`` is given everything that happened: once a step, and also before a forward if a
    sequence was admitted or let go of, so that nobody waits for a neighbour's forward to hear.
    """

    def __init__(
        self,
        load: Callable[[], CausalLM],
        messages: MessageSource,
        publish: Callable[[FromWorker], None],
        limits: Limits,
        threads: int | None,
        open_store: Callable[[CausalLM], SegmentStore | None] = lambda _: None,
    ) -> None:
        self._load = load
        self._messages = messages
        self._publish = publish
        self._limits = limits
        self._threads = threads
        self._scheduler: Scheduler[JobSequence] = Scheduler(
            max_running=limits.max_running,
            prefill_chunk_tokens=limits.prefill_chunk_tokens,
            prefill_target_s=limits.prefill_target_s,
        )
        self._open_store = open_store
        self._sequences: dict[Job, JobSequence] = {}
        self._report = StepReport()
        self._speculation: Speculation | None = None
        self._states: States  # there once the model is
        self._starved = False

    def run(self) -> None:
        """Load the model, then work until told to stop.

        Raises: whatever loading, the model or a bug raises. Nothing can be computed any more.
        """
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        model = self._load()
        self._speculation = speculation(model)
        self._states = self._new_states(model)
        budget = self._states.figures.budget_bytes
        self._publish(Loaded(model.context_tokens, model.vocab_size, model.state_layout, budget))
        with torch.inference_mode():
            while self._take_messages():
                self._let_go_of_flagged()
                self._admit()
                self._publish_report()
                self._step(model)
                self._publish_report()
        for sequence in list(self._sequences.values()):
            self._end(sequence, EndReason.CANCELLED)
        self._publish_report()

    def _new_states(self, model: CausalLM) -> States:
        budget = self._limits.kv_budget_bytes
        if budget is None:
            claimed_bytes = model.claimed_bytes if isinstance(model, ClaimingLM) else 0
            budget = kv_budget_bytes(model.device, claimed_bytes)
        cache = None
        if self._limits.prefix_cache:
            cache = PrefixCache(model.state_layout, self._open_store(model))
        return States(model, budget, cache)

    def _take_messages(self) -> bool:
        """Take in what was said, waiting only if there is nothing to compute. False: stop."""
        busy = self._scheduler.has_work and not self._starved
        for message in self._messages.take_ready() if busy else self._messages.wait():
            match message:
                case Job():
                    self._queue(message)
                case Taken(job, tokens):
                    if sequence := self._sequences.get(job):
                        sequence.taken(tokens)
                case Signal.WAKE:
                    pass
                case Signal.STOP:
                    return False
        return True

    def _queue(self, job: Job) -> None:
        sequence = JobSequence(job, max_unread_tokens=self._limits.max_unread_tokens)
        self._sequences[job] = sequence
        self._scheduler.add(sequence)

    def _let_go_of_flagged(self) -> None:
        for job, sequence in list(self._sequences.items()):
            if job.ending is not None:
                self._end(sequence, job.ending)

    def _admit(self) -> None:
        for sequence in self._scheduler.admit(self._states.has_room):
            self._states.admit(sequence)
            self._report.add(sequence.job, sequence.progress)

    def _step(self, model: CausalLM) -> None:
        began = time.perf_counter()
        plan = self._scheduler.plan()
        if not plan or _any_flagged(plan):
            return  # flagged since this round began: they are let go of at the next one's start
        speculation = self._speculation
        plan = self._states.ready(plan, speculation.decode_tokens if speculation else 1)
        # All that is left waits for the memory of those whose readers are behind.
        self._starved = not plan
        if self._starved:
            return
        if speculation is not None:
            speculation.prepare(plan)
        rows = [(sequence, 0) for sequence in plan.decodes] + plan.prefills
        chunks = [sequence.next_chunk(prompt_tokens) for sequence, prompt_tokens in rows]
        if _any_flagged(plan):
            return  # while their states were made ready, or guesses
        with self._discarding_at_failure(plan):
            logits = (model if speculation is None else speculation).forward(chunks)
        self._report.forwards += 1
        self._report.prompt_tokens += sum(prompt_tokens for _, prompt_tokens in rows)
        self._report.drafted_tokens += sum(c.logit_rows - 1 for c in chunks[: len(plan.decodes)])
        to_sample: list[JobSequence] = []
        logit_rows: list[int] = []
        row = 0
        for (sequence, prompt_tokens), chunk in zip(rows, chunks, strict=True):
            start, row = row, row + chunk.logit_rows
            if not self._keep(sequence, prompt_tokens, logits[start:row]) or sequence.prompt_left:
                continue
            if sequence.is_full:
                self._end(sequence, EndReason.LENGTH)
                continue
            to_sample.append(sequence)
            logit_rows.append(row - 1 if prompt_tokens else start)
        self._sample(to_sample, logit_rows, logits)
        if speculation is not None:
            speculation.observe([sequence for sequence, _ in rows], chunks)
        for sequence, _ in rows:
            if sequence.job in self._sequences:
                self._states.computed(sequence)
        self._scheduler.took(plan, time.perf_counter() - began)

    @contextmanager
    def _discarding_at_failure(self, sequences: Iterable[JobSequence]) -> Iterator[None]:
        """What sequences went on from may be why a forward fails. On disk it outlives this worker,
        and would end the next one, too."""
        try:
            yield
        except Exception:
            for sequence in sequences:
                if sequence.cached_from is not None:
                    self._states.discard(sequence)
            raise

    def _sample(self, sequences: list[JobSequence], rows: list[int], logits: torch.Tensor) -> None:
        """A token each from their rows of logits, and more from the next rows while guesses hold.

        Shapes: logits (rows of all chunks, vocabulary).
        """
        while sequences:
            self._append(sequences, logits if len(rows) == len(logits) else logits[rows])
            right = [index for index, sequence in enumerate(sequences) if sequence.take_draft()]
            self._report.accepted_tokens += len(right)
            sequences = [sequences[index] for index in right]
            rows = [rows[index] + 1 for index in right]

    def _keep(self, sequence: JobSequence, prompt_tokens: int, logits: torch.Tensor) -> bool:
        """Take in what a forward computed for a sequence. False: flagged meanwhile, and let go of.

        Shapes: logits (the chunk's logit_rows, vocabulary).
        """
        ending = sequence.job.ending
        if ending is EndReason.CANCELLED:
            sequence.waste(prompt_tokens)
        else:
            sequence.computed(prompt_tokens)
        if ending is not None:
            self._end(sequence, ending)
            return False
        if prompt_tokens:
            scored = sequence.job.request.prompt_logprobs
            progress = sequence.prompt_logprobs(logits) if scored else sequence.progress
            self._report.add(sequence.job, progress)
        return True

    def _append(self, sequences: list[JobSequence], logits: torch.Tensor) -> None:
        token_ids = sample(_adjusted(logits, sequences), sequences)
        now = time.perf_counter()
        scores = _logprobs(logits, sequences, token_ids)
        for index, (sequence, token_id) in enumerate(zip(sequences, token_ids, strict=True)):
            if token_id is None:
                self._end_without_token(sequence)
                continue
            outcome = sequence.append(token_id, now, *scores.get(index, (None, ())))
            if isinstance(outcome, EndReason):
                self._end(sequence, outcome)
                continue
            self._report.add(sequence.job, outcome)
            if sequence.is_complete:
                self._end(sequence, EndReason.COMPLETE)
            elif sequence.is_full:
                self._end(sequence, EndReason.LENGTH)

    def _end(self, sequence: JobSequence, reason: EndReason) -> None:
        job = sequence.job
        self._forget(sequence)
        self._report.add(job, TokensEnded(reason, sequence.release(time.perf_counter())))

    def _end_without_token(self, sequence: JobSequence) -> None:
        if sequence.is_complete:
            self._end(sequence, EndReason.COMPLETE)
            return
        job, error = sequence.job, sequence.error
        if error is None:
            logger.error("a sequence ended: the model's logits for it were not finite numbers")
            error = Ds4TrioError("The model's output for this request was not a number.")
            self._states.discard(sequence)
        self._forget(sequence)
        self._report.add(job, JobFailed(error, sequence.release(time.perf_counter())))

    def _forget(self, sequence: JobSequence) -> None:
        sequence.settle()
        self._states.close(sequence)
        self._scheduler.remove(sequence)
        del self._sequences[sequence.job]

    def _publish_report(self) -> None:
        if self._report:
            report, self._report = self._report, StepReport()
            report.kv = self._states.figures
            self._publish(report)


def _any_flagged(sequences: Iterable[JobSequence]) -> bool:
    return any(sequence.job.ending is not None for sequence in sequences)


def _adjusted(logits: torch.Tensor, sequences: list[JobSequence]) -> torch.Tensor:
    """As each sequence wants them; the given ones, unchanged, are the model's.

    Shapes: logits and result (sequences, vocabulary).
    """
    changing = [row for row, sequence in enumerate(sequences) if sequence.adjusts_logits]
    if not changing:
        return logits
    logits = logits.clone()
    for row in changing:
        sequences[row].adjust_(logits[row])
    return logits


def _logprobs(
    logits: torch.Tensor, sequences: list[JobSequence], token_ids: list[int | None]
) -> dict[int, tuple[float, TopLogprobs]]:
    """By row, for those who asked. Shapes: logits (sequences, vocabulary)."""
    asking = [
        (row, token_id, sequence.job.request.logprobs)
        for row, (sequence, token_id) in enumerate(zip(sequences, token_ids, strict=True))
        if sequence.job.request.logprobs is not None and token_id is not None
    ]
    if not asking:
        return {}
    rows, wanted, top = (list(column) for column in zip(*asking, strict=True))
    return dict(zip(rows, logprobs(logits[rows], wanted, top), strict=True))
