"""``python -m ds4trio.bench.streams URL COUNT``: streams of a process that is to be killed."""

from __future__ import annotations

import sys

import trio

from ds4trio.bench.client import BODIES, Target, request_body


async def main(url: str, count: int) -> None:
    """Ask for ``count`` long streams, say so with one byte on standard output, and read on."""
    target = Target.parse(url)
    paths = list(BODIES)
    asked = 0

    async def stream(path: str) -> None:
        nonlocal asked
        async with await target.connect() as connection:
            await connection.send("POST", path, request_body(path, stream=True, max_tokens=10_000))
            asked += 1
            if asked == count:
                sys.stdout.write(".")
                sys.stdout.flush()
            await connection.read_all()

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(stream, paths[number % len(paths)])


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
