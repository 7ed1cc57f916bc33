"""Chat in the terminal. Ctrl-C stops the answer, not the program; at the prompt it leaves.

There is no abort call: the answer lives in a block, and Trio's own cancel scope ends the block.
"""

from __future__ import annotations

import signal
import sys
from io import FileIO
from typing import TYPE_CHECKING

import trio

import ds4trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable


async def answer(
    engine: ds4trio.Service, messages: list[dict[str, str]], show: Callable[[str], None]
) -> str:
    """Stream one answer; SIGINT cuts it short. Returns what was said."""
    said: list[str] = []
    with trio.open_signal_receiver(signal.SIGINT) as interrupts, trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def stop_on_interrupt() -> None:
                async for _ in interrupts:
                    scope.cancel()

            nursery.start_soon(stop_on_interrupt)
            async with engine.chat(messages, max_tokens=512) as reply:
                async for event in reply:
                    if isinstance(event, ds4trio.TextDelta):
                        said.append(event.text)
                        show(event.text)
            nursery.cancel_scope.cancel()
    show("\n" if not scope.cancelled_caught else " [stopped]\n")
    return "".join(said)


async def lines_from_stdin() -> AsyncIterable[str]:
    # Abandoned, so that Ctrl-C is heard at the prompt; unbuffered, because Python, when it exits,
    # waits for the lock of a buffer that an abandoned thread still reads.
    stdin = FileIO(0, closefd=False)
    while line := await trio.to_thread.run_sync(stdin.readline, abandon_on_cancel=True):
        yield line.decode(errors="replace").strip()


async def main(model: str | None = None) -> None:
    def show(text: str) -> None:
        print(text, end="", flush=True)

    messages: list[dict[str, str]] = []
    async with ds4trio.open_engine(model) as engine:
        show("> ")
        async for line in lines_from_stdin():
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": await answer(engine, messages, show)})
            show("> ")


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else None)
    except* KeyboardInterrupt:
        print()
