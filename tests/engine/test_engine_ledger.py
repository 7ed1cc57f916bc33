"""Memory is granted so that everybody can be brought to an end, in any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ds4trio.engine.ledger import Ledger


class LedgerMachine(RuleBasedStateMachine):
    """Holders open, grow and close; what they were promised is the model."""

    @initialize(budget=st.integers(1, 50))
    def start(self, budget: int) -> None:
        self.budget = budget
        self.ledger: Ledger[int] = Ledger(budget)
        self.claims: dict[int, int] = {}
        self.granted: dict[int, int] = {}
        self.next = 0

    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        claim = data.draw(st.integers(1, self.budget))
        first = data.draw(st.integers(0, claim))
        self.next += 1
        opened = self.ledger.open(self.next, first, claim)
        assert opened or self.claims, "alone, nobody has to wait"
        if opened:
            self.claims[self.next], self.granted[self.next] = claim, first

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.claims)))
        total = data.draw(st.integers(self.granted[holder], self.claims[holder]))
        if self.ledger.grant(holder, total):
            self.granted[holder] = total

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.claims)))
        self.ledger.close(holder)
        del self.claims[holder], self.granted[holder]

    @invariant()
    def all_can_end(self) -> None:
        """Whoever can still get all it claims ends, and so on, until nobody is left."""
        assert self.ledger.granted == sum(self.granted.values()) <= self.budget
        left = dict(self.granted)
        while left:
            free = self.budget - sum(left.values())
            able = [holder for holder in left if self.claims[holder] - left[holder] <= free]
            assert able, "a deadlock"
            del left[able[-1]]

    def teardown(self) -> None:
        """And in truth: asked for all, one is always granted it, until all have ended."""
        while self.claims:
            able = [h for h in sorted(self.claims) if self.ledger.grant(h, self.claims[h])]
            assert able
            for holder in able:
                self.ledger.close(holder)
                del self.claims[holder]


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=20)


def test_claims_may_be_many_times_the_memory() -> None:
    """Eight may come to need 40 of 100 each, and all of them run."""
    ledger: Ledger[int] = Ledger(100)
    assert all(ledger.open(holder, 5, 40) for holder in range(8))
    assert ledger.grant(3, 30)
    assert ledger.grant(4, 30)
    assert not ledger.grant(5, 6)  # 10 are left, and the two that need no more could not end
    assert ledger.grant(3, 40)
