"""What each API key may take, beyond what the server can give. Pure: the clock is the caller's.

Places are shared out by the engine (see `engine.fair_queue`); here a key's requests are counted
before anything is spent on them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ds4trio.engine.fair_queue import Share
from ds4trio.errors import RateLimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ds4trio.server.keys import KeyRules

MINUTE_S = 60.0
#: What a client is told to wait when one of its own requests has to end first. A guess.
OWN_END_S = 1


class Quota:
    """One key's. ``clock`` gives seconds.

    Tokens are paid for when they have been taken, because nobody knows before how many it will be:
    a key may overdraw with what it has running, and then waits until that is paid back.
    """

    def __init__(self, rules: KeyRules, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._clock = clock
        self._requests = 0
        self._tokens = float(rules.tokens_per_minute or 0)
        self._at = clock()

    def check(self) -> None:
        """Whether there may be one more request. Raises: RateLimitError."""
        rules = self._rules
        if rules.max_running is not None and rules.max_waiting is not None:
            most = rules.max_running + rules.max_waiting
            if self._requests >= most:
                raise RateLimitError(
                    f"This API key has {most} requests running and waiting, and may have no more.",
                    retry_after_s=OWN_END_S,
                )
        if rules.tokens_per_minute is not None and (missing := 1 - self._refilled()) > 0:
            raise RateLimitError(
                f"This API key has taken its {rules.tokens_per_minute} tokens a minute.",
                retry_after_s=math.ceil(missing * MINUTE_S / rules.tokens_per_minute),
            )

    def enter(self) -> None:
        """A request begins."""
        self._requests += 1

    def leave(self, tokens: int) -> None:
        """One that had entered has ended, and took so many tokens."""
        self._requests -= 1
        self._tokens = self._refilled() - tokens

    def share(self, priority: int) -> Share:
        """Of the engine's places."""
        asked = priority if self._rules.may_prioritise else 0
        return Share(self._rules.name, self._rules.max_running, asked)

    def _refilled(self) -> float:
        """Tokens left as of now: never more than a minute's."""
        now, rate = self._clock(), self._rules.tokens_per_minute or 0
        self._tokens = min(rate, self._tokens + (now - self._at) * rate / MINUTE_S)
        self._at = now
        return self._tokens
