"""Keep and find chains in the folder argv[1], as one of several processes that do.

There is room for a part of them only, so that all throw out what others have written. Whatever is
found must be right. argv[2] seeds the order; prints how often something was found, and thrown out.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from disk_rig import Disk, chain, joined, same, state

CHAINS = 12
TOKENS = 600
ROUNDS = 80


def tokens(number: int) -> list[int]:
    """Some of the chains begin alike."""
    rng = random.Random(number // 3)
    shared = rng.choices(range(1000), k=300)
    return shared + random.Random(number).choices(range(1000), k=TOKENS - 300)


def main(folder: Path, seed: int) -> None:
    os.fsync = lambda fd: None  # the machine does not fail here, and it takes its time
    rng = random.Random(seed)
    one = sum(segment.nbytes for segment in chain(tokens(0), TOKENS))
    disk = Disk(folder, budget_bytes=4 * one)
    hits = 0
    for _ in range(ROUNDS):
        disk.clock.now += 3600
        number, stop = rng.randrange(CHAINS), rng.choice((256, 400, TOKENS))
        token_ids = tokens(number)
        if rng.random() < 0.5:
            disk.keep(chain(token_ids, stop))
        elif found := disk.store.find(token_ids, 1):
            hits += 1
            assert same(joined(found), state(token_ids, 0, found[-1].stop))
    assert not disk.bad()
    print(hits, disk.stats.evicted_bytes)


main(Path(sys.argv[1]), int(sys.argv[2]))
