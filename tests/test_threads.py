"""Crossing threads: order, waking, endings."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from ds4trio.threads import (
    OFF_LOOP_THREADS,
    Inbox,
    LoopPoster,
    run_off_loop,
    run_worker_thread,
    thread_beside,
)


async def test_a_worker_is_told_and_answers_in_order() -> None:
    inbox: Inbox[int | None] = Inbox()
    answers: list[int] = []
    post = LoopPoster(answers.append)

    def work() -> None:
        while True:
            for item in inbox.wait():
                if item is None:
                    return
                post(item * item)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_worker_thread(work, name="worker"))
        for number in range(1000):
            inbox.put(number)
            if number % 100 == 0:
                await trio.testing.wait_all_tasks_blocked()
        inbox.put(None)
    assert answers == [n * n for n in range(1000)]


async def test_all_posted_before_a_raise_is_delivered_before_it() -> None:
    answers: list[int] = []
    post = LoopPoster(answers.append)

    def work() -> None:
        for number in range(100):
            post(number)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_worker_thread(work, name="worker")
    assert answers == list(range(100))


def test_ready_is_all_there_is() -> None:
    inbox: Inbox[str] = Inbox()
    assert inbox.take_ready() == []
    inbox.put("a")
    inbox.put("b")
    assert inbox.take_ready() == ["a", "b"]
    inbox.put("c")
    assert inbox.wait() == ["c"]


async def test_a_cancelled_worker_is_waited_for() -> None:
    inbox: Inbox[None] = Inbox()
    ended = False

    def work() -> None:
        nonlocal ended
        inbox.wait()
        ended = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_worker_thread(work, name="worker"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        assert not ended
        inbox.put(None)
    assert ended


def test_posting_to_a_loop_that_has_ended() -> None:
    async def main() -> LoopPoster[int]:
        return LoopPoster(print)

    post = trio.run(main)
    with pytest.raises(trio.RunFinishedError):
        post(1)


async def test_off_the_loop() -> None:
    def where(*numbers: int) -> tuple[int, bool]:
        return sum(numbers), threading.current_thread() is threading.main_thread()

    assert await run_off_loop(where, 1, 2) == (3, False)
    with pytest.raises(ValueError, match="invalid literal"):
        await run_off_loop(int, "x")


async def test_off_the_loop_leaves_at_once_and_stays_bounded() -> None:
    go = threading.Event()
    running = threading.Semaphore(0)

    def slow() -> None:
        running.release()
        go.wait()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            for _ in range(OFF_LOOP_THREADS + 3):
                nursery.start_soon(run_off_loop, slow)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    try:
        assert scope.cancelled_caught
        for _ in range(OFF_LOOP_THREADS):
            running.acquire()
        assert not running.acquire(blocking=False)
    finally:
        go.set()
    await trio.testing.wait_all_threads_completed()


async def test_a_thread_beside_a_block_ends_with_it() -> None:
    inbox: Inbox[int | None] = Inbox()
    taken: list[int | None] = []

    def work() -> None:
        while taken[-1:] != [None]:
            taken.extend(inbox.wait())

    with trio.CancelScope() as scope:
        async with thread_beside(work, lambda: inbox.put(None), name="beside", patience_s=60):
            inbox.put(1)
            scope.cancel()  # leaving it so is no reason not to wait
            await trio.sleep_forever()
    assert taken == [1, None]


async def test_a_thread_beside_that_is_stuck_is_left_behind() -> None:
    stuck = threading.Event()

    def work() -> None:
        stuck.wait()

    async with thread_beside(work, lambda: None, name="stuck", patience_s=0.01):
        pass
    (left,) = [thread for thread in threading.enumerate() if thread.name == "stuck"]
    assert left.daemon  # so that the process can end
    stuck.set()
    left.join()
