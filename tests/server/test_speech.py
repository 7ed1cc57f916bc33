"""When a stream gives a sign of life, against a timeline worked out beside it. Time is a mock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from ds4trio.protocols.wire import WireEvent
from ds4trio.server.speech import Speech

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.errors import Ds4TrioError

HEARTBEAT_S = 10.0


class Numbered:
    """Words that come at given times, numbered together with the signs of life between them.

    A word without text is one that was held back: there is nothing to write.
    """

    def __init__(self, arrivals: Sequence[tuple[float, bool]]) -> None:
        self._left = list(arrivals)
        self._number = 0

    def _event(self, kind: str) -> WireEvent:
        self._number += 1
        return WireEvent(f"{kind}{self._number}".encode())

    async def more(self) -> tuple[Sequence[WireEvent], bool]:
        at, has_text = self._left[0]
        await trio.sleep_until(at)
        del self._left[0]
        last = not self._left
        return [self._event("word")] if has_text else [], last

    def heartbeat(self) -> WireEvent:
        return self._event("sign")

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        raise AssertionError(error)


async def spoken(
    arrivals: Sequence[tuple[float, bool]], write_s: Sequence[float]
) -> list[tuple[float, str]]:
    """When each write began, and of what. The n-th write takes ``write_s[n]``, or no time."""
    said: list[tuple[float, str]] = []
    writing = False

    async def write(data: bytes, last: bool) -> None:
        nonlocal writing
        assert not writing
        said.append((trio.current_time(), data.decode().removeprefix("data: ").strip()))
        writing = True
        takes = write_s[len(said) - 1] if len(said) <= len(write_s) else 0.0
        await trio.sleep(
            takes
        )  # a checkpoint: were it in a cancelled scope, the word would be lost
        writing = False

    speech = Speech(Numbered(arrivals), write, HEARTBEAT_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(speech.watch)
        await speech.run()
        nursery.cancel_scope.cancel()
    return said


def timeline(
    arrivals: Sequence[tuple[float, bool]], write_s: Sequence[float]
) -> list[tuple[float, str]]:
    """The same, as the rules have it."""
    takes = iter(write_s)
    now, due, number = 0.0, HEARTBEAT_S, 0
    said: list[tuple[float, str]] = []

    def write(text: str) -> None:
        nonlocal now, due
        said.append((now, text))
        now += next(takes, 0.0)
        due = now + HEARTBEAT_S

    for index, (at, has_text) in enumerate(arrivals):
        while due < at:
            number += 1
            now = due
            write(f"sign{number}")
        now = max(now, at)
        if has_text:
            number += 1
        if has_text or index == len(arrivals) - 1:
            write(f"word{number}" if has_text else "")
    return said


def run(
    arrivals: Sequence[tuple[float, bool]], write_s: Sequence[float]
) -> list[tuple[float, str]]:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(spoken, arrivals, write_s, clock=clock)


# Times that cannot meet: words at whole seconds, signs of life at tenths after writes of tenths.
gaps = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=8)
waits = st.lists(st.integers(0, 30).map(lambda n: n * 1.1 + 0.01), min_size=20, max_size=20)


@given(gaps, waits)
@example([(35, True)], [0.01] * 20)
@example([(35, False), (0, True)], [12.34] * 20)
def test_signs_come_when_they_are_due(gaps: list[tuple[int, bool]], write_s: list[float]) -> None:
    """Neither sooner nor later, never within a write, in order with the words, and none is lost."""
    arrivals, at = [], 0.0
    for gap, has_text in gaps:
        at += gap + 0.005
        arrivals.append((at, has_text))
    expected = timeline(arrivals, write_s)
    found = run(arrivals, write_s)
    assert [text for _, text in found] == [text for _, text in expected]
    assert all(abs(a - b) < 1e-6 for (a, _), (b, _) in zip(found, expected, strict=True))


@given(st.integers(1, 4), st.booleans())
def test_words_that_come_with_the_sign(count: int, last_is_empty: bool) -> None:
    """In the same moment either may be first, but every word is said once, and in order."""
    arrivals = [(HEARTBEAT_S * (n + 1), True) for n in range(count)]
    if last_is_empty:
        arrivals.append((HEARTBEAT_S * (count + 1), False))
    found = [text for _, text in run(arrivals, [])]
    words = [text for text in found if text.startswith("word")]
    assert len(words) == count
    numbers = [int(text[4:]) for text in found if text]
    assert numbers == list(range(1, len(numbers) + 1))


class ReadyAsItIsInterrupted(Numbered):
    """A word that is there when the watch interrupts the waiting for it."""

    def __init__(self) -> None:
        super().__init__([(0.0, True)])
        self.news = trio.lowlevel.ParkingLot()

    async def more(self) -> tuple[Sequence[WireEvent], bool]:
        await self.news.park()
        return [self._event("word")], True


async def test_a_word_taken_as_the_watch_interrupts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Woken by its word first, cancelled second, in one turn: the word is said, and no sign."""
    words = ReadyAsItIsInterrupted()
    said: list[bytes] = []

    async def write(data: bytes, _last: bool) -> None:
        said.append(data)
        await trio.lowlevel.checkpoint()  # interrupted here, it would be written in part

    speech = Speech(words, write, HEARTBEAT_S)

    class WakeFirst(trio.abc.Instrument):
        """Just before the watch runs at its time, the word comes."""

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if task.name.endswith("watch") and trio.current_time() >= HEARTBEAT_S:
                words.news.unpark_all()

    instrument = WakeFirst()
    trio.lowlevel.add_instrument(instrument)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(speech.watch)
        await speech.run()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(instrument)
    assert said == [b"data: word1\n\n"]
