"""Who holds how much of the memory for sequences' states, so that it never runs out.

A sequence claims what it may grow to, and is granted memory piece by piece. A grant is given only
where everybody could still be brought to an end one after the other, each with its whole claim
(Dijkstra's banker's algorithm). So nobody needs to be killed, and all claims together may be many
times the memory there is. Pure arithmetic.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")


class Ledger(Generic[K]):
    """Units: bytes. Runs on: worker (but it is plain synchronous code)."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._claims: dict[K, int] = {}
        self._granted: dict[K, int] = {}

    @property
    def granted(self) -> int:
        """To all together."""
        return sum(self._granted.values())

    def open(self, holder: K, first: int, claim: int) -> bool:
        """Grant ``first`` to a new holder, who may come to need ``claim``; or say that it must
        wait. A claim within the budget is granted at the latest when it is alone.
        """
        self._claims[holder] = claim
        self._granted[holder] = 0
        if self.grant(holder, first):
            return True
        self.close(holder)
        return False

    def grant(self, holder: K, total: int) -> bool:
        """Let a holder have ``total``, at most its claim; or say that it must wait for others to
        end. Those who must not are never all waiting.
        """
        before = self._granted[holder]
        self._granted[holder] = max(total, before)
        if self._is_safe():
            return True
        self._granted[holder] = before
        return False

    def close(self, holder: K) -> None:
        """It has ended."""
        del self._claims[holder], self._granted[holder]

    def _is_safe(self) -> bool:
        """Whether all could end. Those who need least are the first to try, and each that ends
        leaves more for the rest.
        """
        free = self.budget - self.granted
        if free < 0:
            return False
        for holder in sorted(self._claims, key=self._need):
            if self._need(holder) > free:
                return False
            free += self._granted[holder]
        return True

    def _need(self, holder: K) -> int:
        return self._claims[holder] - self._granted[holder]
