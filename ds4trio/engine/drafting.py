"""One sequence's guesses, and what its state must forget if they fail.

Knows nothing of who guesses, and of batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.models.base import Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ds4trio.models.base import DraftState, TrialState


class Drafting:
    """Runs on: worker.

    Life: for each forward ``propose`` and ``chunk``; then, for each token sampled, ``append`` and
    ``take``, until that says no; then ``observe``. ``settle`` at any time.
    """

    def __init__(self, state: TrialState, memory: DraftState) -> None:
        self.memory = memory
        self._state = state
        self._drafts: list[int] = []
        self._following: list[int] = []
        self._staying: int | None = None  # of the state's tokens; None: all

    @property
    def wants_drafts(self) -> bool:
        return not self._drafts

    def propose(self, token_ids: Sequence[int]) -> None:
        """What may come next."""
        self._drafts = list(token_ids)

    def chunk(self, last_token_id: int) -> Chunk:
        """The last sampled token and the guesses, with logits after each."""
        token_ids = (last_token_id, *self._drafts)
        if self._drafts:
            self._staying = self._state.length + 1
            self._state.hold(len(token_ids))
        return Chunk(self._state, token_ids, logit_rows=len(token_ids))

    def append(self, *token_ids: int) -> None:
        """What follows the tokens just computed."""
        self._following += token_ids

    def take(self, token_id: int) -> bool:
        """Whether the token just sampled is the next guess: the forward computed it already, and
        what comes after it can be sampled too. If not, the state forgets what it was fed in vain.
        """
        if self._drafts[:1] == [token_id] and self._staying is not None:
            del self._drafts[0]
            self._staying += 1
            return True
        self.settle()
        return False

    def settle(self) -> None:
        """Drop what guesses are left: the state holds nothing but the sequence's own tokens."""
        self._drafts = []
        if self._staying is not None:
            # Less if the forward never came.
            self._state.settle(min(self._staying, self._state.length))
            self._staying = None

    def observe(self, features: torch.Tensor) -> None:
        """Let the drafter know how the sequence went on. Shapes: features (T, ...), of the chunk's
        tokens; those of guesses that failed come last.
        """
        following, self._following = self._following, []
        if following:
            self.memory.observe(features[: len(following)], following)
