"""Sequences' states from the first to the last: whether there is memory for them, what they can be
restored from, and what is kept of them. What of this a step of the worker has to do with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.engine.kv_memory import KvMemory
from ds4trio.engine.messages import KvFigures
from ds4trio.engine.reuse import Reuse
from ds4trio.engine.scheduler import Plan

if TYPE_CHECKING:
    from ds4trio.cache.prefix import PrefixCache
    from ds4trio.engine.sequence import JobSequence
    from ds4trio.models.base import CausalLM, SequenceState


class States:
    """Runs on: worker. ``cache`` None: nothing is kept.

    For each sequence ``has_room``, until it says yes, and ``admit``; for each step ``ready``, and
    for each sequence in it ``computed``; ``close`` when it has ended, however and whenever.
    """

    def __init__(self, model: CausalLM, budget_bytes: int, cache: PrefixCache | None) -> None:
        self._cache = cache
        self._evictions = cache.evictions if cache is not None else KvFigures().evictions
        self._memory = KvMemory(model.state_layout, budget_bytes, cache)
        self._model = model
        self._reuse = Reuse(model.state_layout, self._new_state, cache)

    @property
    def figures(self) -> KvFigures:
        """As of now."""
        cache = self._cache
        return KvFigures(
            budget_bytes=self._memory.budget,
            running_bytes=self._memory.running_bytes,
            cached_bytes=0 if cache is None else cache.nbytes,
            hits=dict(self._reuse.hits),
            misses=self._reuse.misses,
            evictions=dict(self._evictions),
        )

    def has_room(self, sequence: JobSequence) -> bool:
        """Whether it can run now; if so, its memory is granted."""
        return self._memory.open(sequence)

    def admit(self, sequence: JobSequence) -> None:
        """It runs from now on, and knows what is known of its prompt."""
        self._reuse.admit(sequence)

    def ready(self, plan: Plan[JobSequence], a_decode: int) -> Plan[JobSequence]:
        """What of a step can be computed now; at least something, if there was anything.

        ``a_decode``: how many tokens each decode computes, at most.
        """
        decodes = [
            sequence for sequence in plan.decodes if self._memory.make_room(sequence, a_decode)
        ]
        prefills = []
        for sequence, most in plan.prefills:
            self._reuse.begin(sequence)
            tokens = self._reuse.clip(sequence, most)
            if self._memory.make_room(sequence, tokens):
                prefills.append((sequence, tokens))
        return Plan(decodes, prefills)

    def computed(self, sequence: JobSequence) -> None:
        """A forward of it is done, and it goes on."""
        self._reuse.computed(sequence)

    def discard(self, sequence: JobSequence) -> None:
        """It has failed: nothing of it is kept, nor anything that it may have failed by."""
        self._reuse.discard(sequence)

    def close(self, sequence: JobSequence) -> None:
        """It has ended: what it has computed is kept, its memory is free."""
        self._memory.close(sequence)
        self._reuse.leave(sequence)

    def _new_state(self, sequence: JobSequence) -> SequenceState:
        state = self._model.new_state()
        state.allocate(self._memory.room_tokens(sequence))
        return state
