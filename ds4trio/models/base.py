"""What the engine needs of a model family.

Knows nothing of text, scheduling or sampling. Everything here runs on the worker thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

#: What the names of tensors begin with that a saved state has for its own length only.
TIP = "tip."


@dataclass(frozen=True, slots=True)
class Rows:
    """Of one tensor that grows: how many tokens a row stands for, and its size in bytes."""

    tokens: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """What the states of a model are made of.

    ``rows`` by tensor: what tokens add, once for all. ``tip_bytes`` is the rest, at most: what a
    state keeps of its last tokens only, so that it can be restored where it was saved and nowhere
    before. Where there is no such rest, it can be at any length.
    """

    rows: Mapping[str, Rows]
    tip_bytes: int = 0

    @property
    def token_bytes(self) -> float:
        """What a token adds, on the average."""
        return sum(row.nbytes / row.tokens for row in self.rows.values())

    def nbytes(self, tokens: int) -> int:
        """Of a state with room for so many tokens."""
        return self.tip_bytes + sum(tokens // row.tokens * row.nbytes for row in self.rows.values())


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

    def allocate(self, tokens: int) -> None:
        """Have room for so many tokens in all, exactly, if there is less. What is fed beyond makes
        room for itself, at the cost of copying, and takes more than it needs.
        """
        ...

    def save(self, start: int) -> dict[str, torch.Tensor]:
        """Copies, by name: of the rows that the tokens from ``start`` on have added, and of the
        tip, if the model has any, under names that begin with ``TIP``.

        Shapes: rows are in the last axis but one; of those that stand for r tokens, ``start // r``
        to ``length // r`` - 1.
        """
        ...

    def restore(self, pieces: Sequence[Mapping[str, torch.Tensor]], length: int) -> None:
        """Make this fresh state what was saved, piece by piece from 0 on, when ``length`` tokens
        were computed. Tips count in the last piece only, where they must not miss.

        Raises: ValueError if this is of another model or length; the state is then of no use.
        """
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

    @property
    def device(self) -> torch.device:
        """Where states live."""
        ...

    @property
    def state_layout(self) -> StateLayout: ...

    def new_state(self) -> SequenceState:
        """An empty state, which grows as it is fed."""
        ...

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Advance each chunk's state by its tokens, in one pass.

        Shapes: returns (sum of logit_rows, vocab_size) float32, rows in the chunks' order.
        If it raises, the states of these chunks must not be used again.
        """
        ...


@runtime_checkable
class ClaimingLM(CausalLM, Protocol):
    """A model that will yet take more of its device's memory than it holds now."""

    @property
    def claimed_bytes(self) -> int:
        """At most."""
        ...


@runtime_checkable
class TrialState(SequenceState, Protocol):
    """A state whose latest tokens can be taken back."""

    def hold(self, tokens: int) -> None:
        """Be ready to take back any of the next ``tokens`` tokens.

        Raises: ValueError if they are too many for it.
        """
        ...

    def settle(self, length: int) -> None:
        """Forget what was computed since ``hold`` beyond ``length`` tokens, as if it never was."""
        ...


class DraftState(Protocol):
    """What a drafter remembers of one sequence. It may begin anywhere in it."""

    def observe(self, features: torch.Tensor, next_ids: Sequence[int]) -> None:
        """The sequence went on: a row of features, and the id of the token that came next, for each
        token computed. Shapes: features (T, ...), next_ids T.
        """
        ...


class Drafter(Protocol):
    """Guesses how sequences go on. Wrong guesses cost time and nothing else."""

    @property
    def tokens(self) -> int:
        """How many it guesses at a time, at least 1."""
        ...

    def new_state(self) -> DraftState: ...

    def draft(
        self, states: Sequence[DraftState], choose: Callable[[torch.Tensor], Sequence[int]]
    ) -> list[list[int]]:
        """What may follow all that was observed: ``tokens`` ids for each state.

        Something was observed since the last draft, of every state. ``choose`` makes ids of logits,
        token after token. Shapes: its argument is (states, vocabulary) float32.
        """
        ...


@runtime_checkable
class SpeculativeLM(CausalLM, Protocol):
    """A model that can guess ahead, and check several guesses in one pass. Its states are
    ``TrialState``.

    ``forward`` is ``logits`` of ``advance``.
    """

    @property
    def drafter(self) -> Drafter | None:
        """None: no guesses are wanted."""
        ...

    def advance(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Advance each chunk's state by its tokens. Returns features for the drafter, (T, ...)."""
        ...

    def logits(self, features: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
        """What ``forward`` returns for these chunks, of which ``features`` are."""
        ...
