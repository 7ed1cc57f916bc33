"""The only place where anything crosses between Trio's thread and another.

::

    Trio  --  Inbox.put ------------->  worker
    Trio  <--  LoopPoster.__call__ ---  worker

Knows nothing of engines, tokens or torch.
"""

from __future__ import annotations

import queue
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar, TypeVarTuple

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Result = TypeVar("Result")

#: A guess: texts that may be tokenized side by side without crowding out the worker.
OFF_LOOP_THREADS = 4

_off_loop_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar(
    "ds4trio.threads.off_loop_limiter"
)


class Inbox(Generic[T]):
    """What a thread has been told, in order. Unbounded: what is put is bounded by its senders."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()

    def put(self, item: T) -> None:
        """Runs on: any thread; never blocks."""
        self._items.put(item)

    def take_ready(self) -> list[T]:
        """All there is, perhaps nothing. Runs on: the receiving thread."""
        items: list[T] = []
        try:
            while True:
                items.append(self._items.get_nowait())
        except queue.Empty:
            return items

    def wait(self) -> list[T]:
        """All there is, at least one: blocks until then. Runs on: the receiving thread."""
        first = self._items.get()
        return [first, *self.take_ready()]


class LoopPoster(Generic[T]):
    """Calls ``deliver(item)`` soon on the loop in which it was made. Items keep their order.

    ``deliver`` must not raise: that would end the whole Trio run.

    Runs on: made on trio, called on any thread; calling never blocks.
    Raises: trio.RunFinishedError, when called after the loop has ended. A thread that has nobody
        left to work for should let that end it.
    """

    def __init__(self, deliver: Callable[[T], object]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._deliver = deliver

    def __call__(self, item: T) -> None:
        self._token.run_sync_soon(self._deliver, item)


async def run_worker_thread(function: Callable[[], None], *, name: str) -> None:
    """Run ``function`` on a thread of its own, to its end.

    Cancelling does not abandon it: the caller tells the function, by its inbox, when to return.
    What the function posted before it returned or raised is delivered before this returns.

    Raises: whatever ``function`` raises.
    """
    await trio.to_thread.run_sync(
        function, thread_name=name, abandon_on_cancel=False, limiter=trio.CapacityLimiter(1)
    )


async def run_off_loop(function: Callable[[*Ts], Result], *args: *Ts) -> Result:
    """Run a pure function of the CPU (tokenizing, say) where it cannot delay the loop.

    When cancelled it returns at once; the function runs on to its end, and its result is dropped.
    It must not touch torch: only the engine's worker thread may.

    Raises: whatever ``function`` raises.
    """
    try:
        limiter = _off_loop_limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(OFF_LOOP_THREADS)
        _off_loop_limiter.set(limiter)
    return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=limiter)


@asynccontextmanager
async def thread_beside(
    function: Callable[[], None], stop: Callable[[], None], *, name: str, patience_s: float
) -> AsyncIterator[None]:
    """A thread that runs ``function`` while the block does; ``stop`` is called when it is left.

    Waits for the thread's end then, shielded, but no longer than ``patience_s``: a disk that does
    not answer must not keep a program from ending. ``function`` must not raise.
    """
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(thread.join, patience_s, limiter=trio.CapacityLimiter(1))
