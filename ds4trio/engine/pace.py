"""How many prompt tokens a step may compute: as many as there is time for.

A step is taken to need ``fixed + per_decode * decodes + per_token * prompt tokens`` seconds. The
first two are learnt from steps that only decode, the third from what other steps take beyond that;
so if those have become rare and the machine slow, prompts are blamed, and their share is cut.

A busy machine makes a step slower, nothing makes it faster than it can be. So what is slower than
thought is believed in part, since it may never come again.

Knows no clock: it is told what was measured.
"""

from __future__ import annotations

#: Even where a step is late already, prompts advance by so much (a guess).
LEAST_TOKENS = 16
#: Chunks are multiples of this: kernels like it, and it keeps their sizes few.
GRAIN_TOKENS = 8
#: How much of an error is put right by one step (a guess between quick and calm).
LEARNING_RATE = 0.3


class Pace:
    """A step's share of prompt tokens: from 16 (or ``most_tokens``, if that is less) to
    ``most_tokens``.

    Prompts may add ``target_s`` to a step, or what it takes without them, if that is more. Where
    nobody waits for its end, neither a decode nor the queue, the whole step may take twice
    ``target_s``. A ``target_s`` of 0: always ``most_tokens``.
    """

    def __init__(self, target_s: float, most_tokens: int) -> None:
        self._target_s = target_s
        self._most_tokens = most_tokens
        self._fixed_s = 0.0
        self._decode_s = 0.0
        self._token_s = 0.0

    def prompt_tokens(self, decodes: int, *, alone: bool) -> int:
        """For the next step, beside so many decodes. ``alone``: nobody waits for its end."""
        if not self._target_s:
            return self._most_tokens
        least = min(LEAST_TOKENS, self._most_tokens)
        if not self._token_s:
            return least  # nothing was measured yet
        share_s = max(self._target_s, self._without_prompt(decodes))
        if alone:
            share_s = max(share_s, 2 * self._target_s - self._fixed_s)
        if share_s >= self._most_tokens * self._token_s:
            return self._most_tokens
        return max(least, int(share_s / self._token_s) // GRAIN_TOKENS * GRAIN_TOKENS)

    def took(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """What a step was, and how long it took."""
        if not prompt_tokens:
            self._took_decodes(decodes, seconds)
        elif self._token_s:
            self._took_prompt(decodes, prompt_tokens, seconds)
        else:
            # The first. Half of it, and half for the rest, if that is not known either.
            self._token_s = seconds / 2 / prompt_tokens
            self._fixed_s = self._fixed_s or seconds / 2

    def _took_decodes(self, decodes: int, seconds: float) -> None:
        """By normalised least mean squares (Nagumo and Noda 1967), eight decodes being a unit."""
        units = decodes / 8
        change_s = self._lesson(seconds, self._without_prompt(decodes)) / (1 + units * units)
        self._fixed_s = max(0.0, self._fixed_s + change_s)
        self._decode_s = max(0.0, self._decode_s + change_s * units / 8)

    def _took_prompt(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        without_s = self._without_prompt(decodes)
        if without_s > seconds:
            self._fixed_s *= seconds / without_s
            self._decode_s *= seconds / without_s
            return
        change_s = self._lesson(seconds, without_s + self._token_s * prompt_tokens)
        # The last few tokens of a prompt tell little.
        self._token_s = max(1e-9, self._token_s + change_s / max(prompt_tokens, LEAST_TOKENS))

    def _without_prompt(self, decodes: int) -> float:
        return self._fixed_s + self._decode_s * decodes

    def _lesson(self, seconds: float, expected_s: float) -> float:
        return LEARNING_RATE * min(seconds - expected_s, max(expected_s, self._target_s))
