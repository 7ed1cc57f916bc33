"""Saying a stream's words as they come, and giving a sign of life when none do.

The sign comes when nothing was written for ``heartbeat_s``. It must not come within a write, nor
between words that a writer has numbered, so the one who speaks says it too: the watch only
interrupts the waiting for words. One cancel scope spans many words, because a scope, and a
deadline even more, costs as much as the rest of a write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

from ds4trio.server import sse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ds4trio.protocols.wire import WireEvent
    from ds4trio.server.words import Words


class Speech:
    """One stream after its opening: `run`, and beside it `watch`.

    ``write`` is given bytes, perhaps none if they are the last, and whether they are.
    """

    def __init__(
        self, words: Words, write: Callable[[bytes, bool], Awaitable[None]], heartbeat_s: float
    ) -> None:
        self._words = words
        self._write = write
        self._heartbeat_s = heartbeat_s
        self._due = trio.current_time() + heartbeat_s
        self._uninterrupted = trio.CancelScope()
        self._is_listening = False

    async def run(self) -> None:
        """To the last word."""
        finished = False
        while not finished:
            said: Sequence[WireEvent] = ()
            with trio.CancelScope() as self._uninterrupted:
                while not finished:
                    said, finished = await self._listen()
                    if self._uninterrupted.cancel_called:
                        break  # words came in the same moment: they can be written outside only
                    await self._say(sse.encode(said), finished)
                    said = ()
            if self._uninterrupted.cancel_called:
                sign = b"" if said or finished else sse.heartbeat(self._words.heartbeat())
                await self._say(sse.encode(said) or sign, finished)

    async def watch(self) -> NoReturn:
        """Interrupt ``run`` whenever it has had nothing to say for so long."""
        while True:
            await trio.sleep_until(self._due)
            if trio.current_time() >= self._due:
                if self._is_listening:
                    self._uninterrupted.cancel()
                # It writes now, or in a moment; the next silence begins no sooner than after that.
                await trio.sleep(self._heartbeat_s)

    async def _listen(self) -> tuple[Sequence[WireEvent], bool]:
        self._is_listening = True
        try:
            return await self._words.more()
        finally:
            self._is_listening = False

    async def _say(self, data: bytes, last: bool) -> None:
        if data or last:
            await self._write(data, last)
            self._due = trio.current_time() + self._heartbeat_s
