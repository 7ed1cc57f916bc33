"""What one job's reader holds: its events, and the ways to want no more. Runs on: trio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ds4trio.engine.job import EndReason, TokenEvent
from ds4trio.engine.messages import Taken
from ds4trio.engine.progress import SequenceProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.engine.job import EngineEvent, JobReport
    from ds4trio.engine.messages import Job
    from ds4trio.errors import Ds4TrioError


class TokenStream:
    """One job's events. Made by ``Engine.submit`` and ``submit_all``.

    Readers call `receive`, `stop`, `cancel` and read `report` and `progress`; the rest is the
    engine's side of it.
    """

    report: JobReport | None
    """What the job took; there once it has ended, by itself or by leaving its block."""

    def __init__(
        self,
        job: Job,
        readers: trio.lowlevel.ParkingLot,
        flag: Callable[[Job, EndReason], None],
        tell: Callable[[Taken], None],
        max_unread_tokens: int,
    ) -> None:
        self.report = None
        self.job = job
        self.progress = SequenceProgress(len(job.request.token_ids), job.max_tokens)
        #: The worker holds nothing of the job any more.
        self.released = trio.Event()
        self._readers = readers  # all streams' of one block
        self._flag = flag
        self._tell = tell
        self._max_unread_tokens = max_unread_tokens
        self._ready: list[EngineEvent] = []
        self._untold = 0  # tokens taken, of which the worker has not heard
        self._error: Ds4TrioError | None = None
        self._closed = False

    async def receive(self) -> list[EngineEvent]:
        """Everything that is ready, at least one event. If cancelled, it has taken none.

        Raises: trio.EndOfChannel, after TokensEnded. EngineFailed, if the worker has died.
            Ds4TrioError, if this sequence alone has failed. trio.ClosedResourceError, after the
            block was left.
        """
        ((_, events),) = await receive_any([self])
        return events

    def stop(self) -> None:
        """The reader has enough: the answer is complete. ``receive`` goes on to TokensEnded."""
        self._flag(self.job, EndReason.STOPPED)

    def cancel(self) -> None:
        """The reader is leaving: from this call on no forward begins for the job, and what one
        under way computes is wasted. Leaving the block does the same, some turns of the loop later.
        """
        self._flag(self.job, EndReason.CANCELLED)

    # --- the engine's side ---

    def put(self, event: EngineEvent) -> None:
        """One more event to receive."""
        self.progress.note(event)
        self._ready.append(event)

    def fail(self, error: Ds4TrioError) -> None:
        """What to raise to the reader once it has received what is ready."""
        self._error = error

    def close(self) -> None:
        """Its block is being left."""
        self._closed = True

    def wake_readers(self) -> None:
        """There is news."""
        self._readers.unpark_all()

    @property
    def _has_news(self) -> bool:
        return bool(self._ready or self._closed or self._error is not None)

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._error is not None and not self._ready:
            raise self._error

    def _take(self) -> list[EngineEvent]:
        events, self._ready = self._ready, []
        self._untold += sum(isinstance(event, TokenEvent) for event in events)
        # By halves of the window: few messages, and a paused sequence, whose reader has a whole
        # window to take, is sure to be resumed.
        if self._untold * 2 >= self._max_unread_tokens:
            self._tell(Taken(self.job, self._untold))
            self._untold = 0
        return events


async def receive_any(streams: Sequence[TokenStream]) -> list[tuple[int, list[EngineEvent]]]:
    """Everything that is ready in several streams of one block, by their index, at least one event.

    If cancelled, it has taken none. Raises: trio.EndOfChannel, after the last TokensEnded;
        otherwise as `TokenStream.receive`, for whichever stream fails.
    """
    if any(stream._has_news or stream.released.is_set() for stream in streams):
        await trio.lowlevel.checkpoint()
    while not any(stream._has_news for stream in streams):
        if all(stream.released.is_set() for stream in streams):
            raise trio.EndOfChannel
        await streams[0]._readers.park()
    for stream in streams:
        stream._check()
    return [(index, stream._take()) for index, stream in enumerate(streams) if stream._ready]
