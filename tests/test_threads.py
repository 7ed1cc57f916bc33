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
