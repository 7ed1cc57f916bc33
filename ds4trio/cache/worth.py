"""What it is worth to keep something, against everything else that could be kept in its place.

::

    worth = cost * (1 + hits) * 2 ** (-age / HALF_LIFE_S) / bytes

``cost`` is that of computing it again: each token from the last place that could be restored
without it, and a token costs 1 + position / ATTENTION_TOKENS, because it looks back at all before
it. So the end of a long conversation is worth more than as many bytes of a short prompt, several
times as much, and for a while even if the short one is newer; unused, both fade.

Since all worth halves together, what is worth less stays so. Hence worth is compared as a *score*,
its logarithm at one fixed time, which does not change while nobody uses the thing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds4trio.cache.tree import Use

#: Position at which a prompt's token costs twice the first one's. Measured on the default model:
#: attention is half of a prefill's time at 4k (other models differ by a small factor).
ATTENTION_TOKENS = 4096
#: A guess: people think for minutes between the turns of a conversation.
HALF_LIFE_S = 900.0


def cost(start: int, stop: int) -> float:
    """Of computing the tokens of positions ``start`` to ``stop`` - 1; the very first costs 1."""
    return (stop - start) * (1 + (start + stop) / (2 * ATTENTION_TOKENS))


def score(cost: float, nbytes: int, use: Use) -> float:
    """Of something of that cost and size. Compare with others'; higher is worth more."""
    if not cost:
        return -math.inf
    return math.log2(cost * (1 + use.hits) / max(nbytes, 1)) + use.at / HALF_LIFE_S
