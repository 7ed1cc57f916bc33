"""``python -m ds4trio.bench.readers URL STREAMS PROMPT_TOKENS MAX_TOKENS SEED``: one go at a case,
in a process of its own. Prints how many tokens a second all streams got together.
"""

from __future__ import annotations

import sys

import trio

from ds4trio.bench.answer import first_model
from ds4trio.bench.cases import Case, run_case
from ds4trio.bench.client import Target


async def main(url: str, case: Case, seed: str) -> None:
    """Raises: OSError, ConfigError."""
    target = Target.parse(url)
    done = await run_case(target, await first_model(target), case, seed)
    sys.stdout.write(f"{done.tokens_per_s}\n")


if __name__ == "__main__":
    url, streams, prompt_tokens, max_tokens, seed = sys.argv[1:]
    trio.run(main, url, Case(int(streams), int(prompt_tokens), int(max_tokens)), seed)
