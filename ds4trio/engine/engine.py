"""The loop's side of the engine: open it, submit jobs, read their tokens, leave.

A job exists only inside ``async with engine.submit(...)``. However that block is left, the job's
flag is set and the block waits until the worker has let go: one cause, one flag. Everything here
runs on Trio's thread, and the worker's reports arrive there as plain calls, so there are no locks.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from ds4trio.engine.admission import StateMemory, new_job
from ds4trio.engine.job import EndReason, PrefillProgress, TokenEvent, TokensEnded
from ds4trio.engine.messages import JobFailed, KvFigures, Loaded, Signal, StepReport
from ds4trio.engine.stats import EngineStats
from ds4trio.engine.stream import TokenStream
from ds4trio.engine.worker import Limits, Worker
from ds4trio.errors import EngineFailed, OverloadedError, RequestError, UnavailableError
from ds4trio.models.base import StateLayout
from ds4trio.threads import Inbox, LoopPoster, run_worker_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from ds4trio.cache.segment import SegmentStore
    from ds4trio.engine.job import EngineRequest, JobReport
    from ds4trio.engine.messages import Delivery, FromWorker, Job, ToWorker
    from ds4trio.models.base import CausalLM

T = TypeVar("T")

logger = logging.getLogger("ds4trio.engine")

#: A guess: how long readers get to tell their clients that the worker has died.
FAILURE_GRACE_S = 5.0
#: Bounds of what an overloaded client is told to wait.
RETRY_AFTER_S = (1, 60)


@asynccontextmanager
async def open_engine(
    load: Callable[[], CausalLM],
    *,
    max_running: int = 8,
    max_waiting: int = 128,
    prefill_chunk_tokens: int = 128,
    prefill_target_s: float = 0.0,
    threads: int | None = None,
    max_unread_tokens: int = 64,
    release_timeout_s: float = 30.0,
    kv_budget_bytes: int | None = None,
    prefix_cache: bool = True,
    open_store: Callable[[CausalLM], SegmentStore | None] = lambda _: None,
) -> AsyncIterator[Engine]:
    """One model on one worker thread, for as long as the block lasts.

    ``load`` runs on the worker thread; the block begins when it has returned. Leaving the block
    waits for the forward in flight, never longer; a load cannot be interrupted either. ``threads``
    is torch's for the model (None: torch's own choice). A step computes ``prefill_chunk_tokens``
    of the prompts, or, with a ``prefill_target_s``, what adds about so long to it. A sequence
    pauses while its reader has ``max_unread_tokens`` or more still to take. ``release_timeout_s``
    bounds how long leaving a job's block waits for the worker.

    ``kv_budget_bytes`` bounds the memory of sequences' states, of running ones and of those kept
    for prompts that begin alike (``prefix_cache``); None: half of what is free once the model is
    loaded. ``open_store``, called on the worker thread, gives what keeps them beyond memory.

    Raises: what ``load`` raises, as it is. EngineFailed, if the worker dies: the body is cancelled
        as soon as all jobs' blocks are left, or after FAILURE_GRACE_S.
    """
    engine = Engine(
        limits=Limits(
            max_running,
            prefill_chunk_tokens,
            max_unread_tokens,
            prefill_target_s=prefill_target_s,
            kv_budget_bytes=kv_budget_bytes,
            prefix_cache=prefix_cache,
        ),
        max_waiting=max_waiting,
        release_timeout_s=release_timeout_s,
    )
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine._run_worker, load, threads, open_store)
            try:
                with engine._body:
                    await engine._loaded.wait()
                    yield engine
            except BaseException as raised:  # raised again below: a nursery would put it in a group
                follows = engine.failed and isinstance(raised, Exception | trio.Cancelled)
                error = engine._failure if follows else raised
            engine._close()
        error = error or engine._failure
        if error is not None:
            raise error
    finally:
        del error  # an exception that its own traceback's frame refers to is cyclic garbage


class Engine:
    """Where jobs are submitted. Made by ``open_engine``. Runs on: trio."""

    context_tokens: int
    """Longest sequence, prompt and answer together."""
    vocab_size: int
    stats: EngineStats

    def __init__(self, *, limits: Limits, max_waiting: int, release_timeout_s: float) -> None:
        self.context_tokens = 0
        self.vocab_size = 0
        self.stats = EngineStats()
        self._state_layout = StateLayout({})
        self._limits = limits
        self._max_jobs = limits.max_running + max_waiting
        self._release_timeout_s = release_timeout_s
        self._inbox: Inbox[ToWorker] = Inbox()
        self._streams: dict[Job, TokenStream] = {}  # what the worker holds, or will
        self._reserved = 0
        self._open_blocks = 0
        self._unwanted = 0  # of _streams, those whose flag is set
        self._mean_run_s = 0.0
        self._loaded = trio.Event()
        self._body = trio.CancelScope()
        self._all_left = trio.Event()
        self._failure: Exception | None = None
        self._closed = False

    @property
    def failed(self) -> bool:
        """The worker has died: nothing will be computed any more."""
        return self._failure is not None

    @property
    def max_running(self) -> int:
        """Sequences computed side by side."""
        return self._limits.max_running

    def check_capacity(self, jobs: int = 1) -> None:
        """Refuse early, before anything is spent on a request for so many sequences.

        Raises: OverloadedError, EngineFailed, UnavailableError; RequestError, if the engine never
            has room for so many.
        """
        if self._failure is not None:
            raise self._failed_error()
        if self._closed:
            raise UnavailableError("The engine is closed.")
        if jobs > self._max_jobs:
            raise RequestError(f"{jobs} answers at once are asked for; {self._max_jobs} can be.")
        if len(self._streams) - self._unwanted + self._reserved + jobs > self._max_jobs:
            place_s = math.ceil(self._mean_run_s / self._limits.max_running)
            least, most = RETRY_AFTER_S
            raise OverloadedError(
                f"The engine is busy with {self._max_jobs} requests; please try again later.",
                retry_after_s=min(max(place_s, least), most),
            )

    def reserve(self, jobs: int = 1) -> Places:
        """Places for a request that is being prepared, kept for as long as a ``with`` block lasts
        or until they are submitted to. Raises: as `check_capacity`.
        """
        self.check_capacity(jobs)
        return Places(self, jobs)

    def submit(self, request: EngineRequest) -> AbstractAsyncContextManager[TokenStream]:
        """One job, for as long as the block lasts: see `submit_all`."""
        return _JobBlock(self, [request], lambda streams: streams[0])

    def submit_all(
        self, requests: Sequence[EngineRequest], places: Places | None = None
    ) -> AbstractAsyncContextManager[list[TokenStream]]:
        """Jobs, all or none, for as long as the block lasts. Read them together: `receive_any`.
        They take ``places`` that were kept for them, if there are any.

        Leaving the block, however, sets all their flags, then waits, shielded but no longer than
        ``release_timeout_s``, until the worker has let go. ``max_tokens`` is cut to what fits.

        Raises: on entering: what ``check_capacity`` raises; RequestError for a prompt or settings
            that cannot be; ContextOverflowError.
        """
        return _JobBlock(self, requests, lambda streams: streams, places)

    def _open(self, requests: Sequence[EngineRequest], places: Places | None) -> list[TokenStream]:
        if places is not None:
            places.give_back()  # to be taken again at once
        self.check_capacity(len(requests))
        budget_bytes = self.stats.kv.budget_bytes
        memory = StateMemory(self._state_layout, budget_bytes, self._limits.max_running)
        jobs = [new_job(r, self.context_tokens, self.vocab_size, memory) for r in requests]
        readers = trio.lowlevel.ParkingLot()
        window = self._limits.max_unread_tokens
        streams = [TokenStream(job, readers, self._flag, self._inbox.put, window) for job in jobs]
        self._streams |= zip(jobs, streams, strict=True)
        self._open_blocks += 1
        self.stats.waiting += len(jobs)
        for job in jobs:
            self._inbox.put(job)
        return streams

    def _flag(self, job: Job, reason: EndReason) -> None:
        if job in self._streams and job.ending is None:
            self._unwanted += 1
            self._streams[job].progress.ending = True
            job.end(reason, time.perf_counter())
            self._inbox.put(Signal.WAKE)

    async def _leave(self, streams: Sequence[TokenStream]) -> None:
        for stream in streams:
            stream.cancel()
            stream.close()
        try:
            with trio.move_on_after(self._release_timeout_s, shield=True):
                for stream in streams:
                    await stream.released.wait()
        finally:
            self._open_blocks -= 1
            if self._open_blocks == 0 and self._failure is not None:
                self._all_left.set()
        if not all(stream.released.is_set() for stream in streams):
            logger.error("the worker has not let go of a job in %g s", self._release_timeout_s)

    async def _run_worker(
        self,
        load: Callable[[], CausalLM],
        threads: int | None,
        open_store: Callable[[CausalLM], SegmentStore | None],
    ) -> None:
        publish = LoopPoster(self._receive)
        worker = Worker(load, self._inbox, publish, self._limits, threads, open_store)
        try:
            await run_worker_thread(worker.run, name="ds4trio-engine")
        except Exception as error:
            await self._fail(error)
            self._body.cancel()

    async def _fail(self, error: Exception) -> None:
        if not self._loaded.is_set():
            self._failure = error
            return
        logger.critical("the engine's worker has died", exc_info=error)
        self._failure = EngineFailed(
            f"The engine has failed ({type(error).__name__}); nothing is computed any more."
        )
        self._failure.__cause__ = error
        for stream in list(self._streams.values()):
            stream.fail(self._failed_error())
            self._released(stream)
        if self._open_blocks:
            with trio.move_on_after(FAILURE_GRACE_S, shield=True):
                await self._all_left.wait()

    def _failed_error(self) -> EngineFailed:
        """One for each who hears of it: raising an exception changes it."""
        error = EngineFailed(str(self._failure))
        error.__cause__ = self._failure
        return error

    def _close(self) -> None:
        self._closed = True
        self._inbox.put(Signal.STOP)

    def _receive(self, report: FromWorker) -> None:
        match report:
            case Loaded(context_tokens, vocab_size, state_layout, kv_budget_bytes):
                self.context_tokens = context_tokens
                self.vocab_size = vocab_size
                self._state_layout = state_layout
                self.stats.kv = KvFigures(kv_budget_bytes)
                logger.info(
                    "prompts and answers may take %d bytes (kv_budget_bytes), %.0f a token",
                    kv_budget_bytes,
                    state_layout.token_bytes,
                )
                self._loaded.set()
            case StepReport(forwards, prompt_tokens, deliveries, kv, drafted, accepted):
                self.stats.steps += forwards
                self.stats.prompt_tokens += prompt_tokens
                self.stats.drafted_tokens += drafted
                self.stats.accepted_tokens += accepted
                self.stats.kv = kv or self.stats.kv
                for job, items in deliveries.items():
                    self._deliver(self._streams[job], items)

    def _deliver(self, stream: TokenStream, items: list[Delivery]) -> None:
        for item in items:
            if isinstance(item, JobFailed):
                stream.fail(item.error)
            else:
                stream.put(item)
            match item:
                case TokenEvent():
                    self.stats.generated_tokens += 1
                case PrefillProgress():
                    self._admitted(stream)
                case TokensEnded() | JobFailed():
                    self._ended(stream, item.report)
        stream.wake_readers()

    def _admitted(self, stream: TokenStream) -> None:
        if stream.progress.admitted_at is None:
            stream.progress.admitted_at = time.perf_counter()
            self.stats.waiting -= 1
            self.stats.running += 1

    def _ended(self, stream: TokenStream, report: JobReport) -> None:
        stream.report = report
        self.stats.cached_prompt_tokens += report.cached_prompt_tokens
        self.stats.prompt_tokens += report.cached_prompt_tokens
        self.stats.wasted_prompt_tokens += report.wasted_prompt_tokens
        self.stats.wasted_generated_tokens += report.wasted_generated_tokens
        if stream.progress.admitted_at is not None:
            run_s = time.perf_counter() - stream.progress.admitted_at
            self._mean_run_s += (run_s - self._mean_run_s) * 0.1
        self._released(stream)

    def _released(self, stream: TokenStream) -> None:
        """The worker holds nothing of this job any more."""
        job = stream.job
        del self._streams[job]
        self._unwanted -= job.ending is not None
        if stream.progress.admitted_at is None:
            self.stats.waiting -= 1
        else:
            self.stats.running -= 1
        stream.released.set()
        stream.wake_readers()


class Places:
    """Some that are kept for somebody. Made by ``Engine.reserve``."""

    def __init__(self, engine: Engine, jobs: int) -> None:
        self._engine = engine
        self._jobs = jobs
        engine._reserved += jobs

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """They are kept no longer. Again is no error."""
        self._engine._reserved -= self._jobs
        self._jobs = 0


class _JobBlock(Generic[T]):
    """``async with engine.submit(...)``; ``view`` is what it gives of its streams.

    A class, and protected from KeyboardInterrupt, because a job that was put into the inbox must
    get its stream, and a stream's block must set the flag.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[EngineRequest],
        view: Callable[[list[TokenStream]], T],
        places: Places | None = None,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._view = view
        self._places = places
        self._streams: list[TokenStream] = []

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> T:
        await trio.lowlevel.checkpoint()
        self._streams = self._engine._open(self._requests, self._places)
        return self._view(self._streams)

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._engine._leave(self._streams)
