"""What the engine needs of a model family.

Knows nothing of text, scheduling or sampling. Everything here runs on the worker thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

#: What the names of tensors begin with that a saved state has for its own length only.
TIP = "tip."


class SequenceState(Protocol):
    """What a model remembers of one sequence (keys and values, for a dense model)."""

    @property
    def length(self) -> int:
        """Tokens computed so far; the next token's position."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next tokens of one sequence: a piece of its prompt, or its last sampled token.

    ``logit_rows``: for how many of the last positions logits are wanted (0: none; 1: to sample).
    """

    state: SequenceState
    token_ids: Sequence[int]
    logit_rows: int = 1


class CausalLM(Protocol):
    """A model that continues sequences of token ids.

    Runs on: worker. A forward's result for one sequence does not depend on how its prompt was
    split into chunks, nor on which other sequences share the batch (up to float rounding).
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_tokens(self) -> int:
        """Longest sequence, prompt and answer together."""
        ...

    def new_state(self) -> SequenceState:
        """An empty state, which grows as it is fed."""
        ...

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Advance each chunk's state by its tokens, in one pass.

        Shapes: returns (sum of logit_rows, vocab_size) float32, rows in the chunks' order.
        If it raises, the states of these chunks must not be used again.
        """
        ...
