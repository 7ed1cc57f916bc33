"""A Trio program with a language model inside: no server, no HTTP.

Three questions are answered side by side in one batch, each by its own task.
"""

from __future__ import annotations

import sys

import trio

import ds4trio

QUESTIONS = (
    "Explain what a hash table is in one sentence.",
    "Name three primary colours.",
    "Write a short greeting.",
)


async def ask(engine: ds4trio.Service, question: str) -> None:
    """Print one answer. Leaving the ``async with`` block, however, ends its work."""
    sampling = ds4trio.SamplingParams(temperature=0)
    messages = [{"role": "user", "content": question}]
    async with engine.chat(messages, max_tokens=48, sampling=sampling) as reply:
        answer = await reply.text()
    print(f"{question}\n  {answer}\n")


async def main(model: str | None = None) -> None:
    async with ds4trio.open_engine(model) as engine, trio.open_nursery() as nursery:
        for question in QUESTIONS:
            nursery.start_soon(ask, engine, question)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if sys.argv[1:] else None)
