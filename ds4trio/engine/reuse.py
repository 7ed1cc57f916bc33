"""What sequences take from the prefix cache, and what they leave in it.

A sequence looks when it is admitted, and again right before its first forward: by then, those that
it waited for may have computed what it needs. It leaves what it computes: on the way, so that
others can have it who need it now; and at its end, however that comes, so that the next turn, or
another try, can.

A model without tips can go on from anywhere. One with tips goes on where there is one, so they are
put where that is likely: at the places that the request names, where prompts were seen to part,
before a prompt's last token (to ask again, or to answer otherwise), at the end of an answer, and
now and then in between.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from ds4trio.cache.tree import common_length
from ds4trio.cache.words import CacheSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.cache.prefix import Match, PrefixCache
    from ds4trio.engine.sequence import JobSequence
    from ds4trio.models.base import SequenceState, StateLayout

#: Tokens after which what was computed is kept. A guess: copying so many takes a hundredth of the
#: time of computing them.
KEEP_EVERY_TOKENS = 256
#: Tips are so far apart, but for the last: each costs a forward more, of few tokens. A guess.
LEAST_TOKENS = 32

logger = logging.getLogger("ds4trio.engine")


@dataclass(slots=True)
class _Places:
    """Of a running sequence: lengths up to which it is kept, and at which tips are due."""

    have_begun: bool = False
    kept: int = 0
    tips: Sequence[int] = ()


class Reuse:
    """Runs on: worker.

    For each sequence ``admit``; before each of its forwards ``begin`` and ``clip``, after it
    ``computed``; and ``leave`` when it ends. ``cache`` None: nothing is reused.
    """

    def __init__(
        self,
        layout: StateLayout,
        new_state: Callable[[JobSequence], SequenceState],
        cache: PrefixCache | None,
    ) -> None:
        self.hits: dict[CacheSource, int] = dict.fromkeys(get_args(CacheSource), 0)
        self.misses = 0
        self._new_state = new_state
        self._cache = cache
        self._has_tips = layout.tip_bytes > 0
        # Tips are to take no more memory than what they stand upon.
        tip_tokens = int(layout.tip_bytes / max(layout.token_bytes, 1))
        self._keep_every = max(KEEP_EVERY_TOKENS, tip_tokens)
        self._running: dict[JobSequence, _Places] = {}

    def admit(self, sequence: JobSequence) -> None:
        """Give it a state, which knows what is known of its prompt."""
        self._running[sequence] = _Places()
        sequence.admit(self._new_state(sequence), time.perf_counter())
        if self._cache is not None and (most := _most(sequence)):
            self._restore(self._cache, sequence, most)

    def begin(self, sequence: JobSequence) -> None:
        """It is about to compute. The first time, look again."""
        places = self._running[sequence]
        if places.have_begun:
            return
        places.have_begun = True
        if self._cache is None or not (most := _most(sequence)):
            return
        self._keep_of_neighbours(self._cache, sequence.prompt[:most])
        if self._cache.known(sequence.prompt[:most]) > sequence.cached_prompt_tokens:
            self._restore(self._cache, sequence, most)
        if sequence.cached_from is None:
            self.misses += 1
        else:
            self.hits[sequence.cached_from] += 1

    def clip(self, sequence: JobSequence, prompt_tokens: int) -> int:
        """Of so many tokens to compute, those that come before the next tip."""
        done, tips = sequence.state.length, self._running[sequence].tips
        tokens = min(prompt_tokens, sequence.prompt_left)
        following = bisect_right(tips, done)
        return min(tokens, tips[following] - done) if following < len(tips) else tokens

    def computed(self, sequence: JobSequence) -> None:
        """It has computed: keep what is due."""
        places, length = self._running[sequence], sequence.state.length
        if length in places.tips or length - places.kept >= self._keep_every:
            places.kept = length
            if self._cache is not None:
                _keep(self._cache, sequence)

    def leave(self, sequence: JobSequence) -> None:
        """It ends: keep what it has computed."""
        places = self._running.pop(sequence, None)
        if places is None or not places.have_begun or self._cache is None:
            return
        if _keep(self._cache, sequence):
            parting = (*sequence.job.request.stable_prefixes, len(sequence.prompt))
            self._cache.offer(sequence.token_ids[: sequence.state.length], parting)

    def discard(self, sequence: JobSequence) -> None:
        """It has failed: what it has computed is not kept, and what was kept of its tokens, which
        it may have gone on from, is forgotten, so that the next try does not fail alike.
        """
        if self._running.pop(sequence, None) is not None and self._cache is not None:
            self._cache.drop(sequence.token_ids)

    def _restore(self, cache: PrefixCache, sequence: JobSequence, most: int) -> None:
        match = cache.find(sequence.prompt, most, time.monotonic())
        if match.source is not None:
            state = self._new_state(sequence)
            try:
                state.restore(match.pieces, match.length)
            except ValueError:
                logger.exception("what was kept of a prompt (%s) is not used", match.source)
                return
            sequence.go_on_from(state, match.source)
        places = self._running[sequence]
        places.kept = match.length
        if self._has_tips:
            places.tips = self._tips(sequence, match, most)

    def _tips(self, sequence: JobSequence, match: Match, most: int) -> list[int]:
        """Where to put tips in what is yet to be computed of a prompt."""
        periodic = range(self._keep_every, most, self._keep_every)
        wanted = {*sequence.job.request.stable_prefixes, match.shared, *periodic}
        tips = [match.length]
        for place in sorted(wanted):
            if tips[-1] + LEAST_TOKENS <= place < most:
                tips.append(place)
        return [*tips[1:], most] if most > match.length else []

    def _keep_of_neighbours(self, cache: PrefixCache, prompt: tuple[int, ...]) -> None:
        """What others have computed by now, and this prompt begins with too."""
        for other, places in self._running.items():
            length = other.state.length
            if not places.have_begun or not length:
                continue
            common = common_length(prompt, other.token_ids[:length])
            is_of_use = common == length if self._has_tips else common > 0
            if is_of_use and common > cache.known(prompt):
                _keep(cache, other)


def _most(sequence: JobSequence) -> int:
    """How much of its prompt may be reused: its last token's logits are needed, and for the
    prompt's logprobs all are.
    """
    return 0 if sequence.job.request.prompt_logprobs else len(sequence.prompt) - 1


def _keep(cache: PrefixCache, sequence: JobSequence) -> bool:
    """Says whether all is kept that the sequence has computed."""
    length = sequence.state.length
    if not length:
        return False
    total = max(len(sequence.prompt), length)
    return cache.insert(sequence.token_ids, sequence.state, total, time.monotonic())
