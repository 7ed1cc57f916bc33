"""Several tokens of a sequence in one forward: guessed cheaply, then checked all at once.

::

    draft d1 d2 -> forward of last, d1, d2 -> sample what follows last
                                                 is it d1? -> sample what follows d1
                                                                 is it d2? -> ...

Each token is sampled as it always is, from the model's own logits and with the sequence's next
random number; a guess that equals it has saved a forward, and that is all guesses do. So an answer
is token for token what it would be without them, whatever shapes it: temperature and filters,
penalties, constraints, budgets. It is the rejection sampling of Leviathan et al. 2023 and Chen et
al. 2023 with a proposal that is one token: x is kept with probability p(x), and else replaced by a
draw from the rest of p.

The drafter draws its tokens with the very numbers that the sampler is about to use: where both
distributions are alike, so are the tokens. Source: Daliri et al. 2024, arXiv 2408.07978.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.engine.sampler import sample
from ds4trio.models.base import SpeculativeLM

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    import torch

    from ds4trio.engine.scheduler import Plan
    from ds4trio.engine.sequence import JobSequence
    from ds4trio.models.base import CausalLM, Chunk, Drafter
    from ds4trio.request import SamplingParams


@dataclass(frozen=True, slots=True)
class _Row:
    """A SamplingRow that takes its random numbers from nobody."""

    sampling: SamplingParams
    rng: random.Random


class Speculation:
    """What a step does beside the plain one. Runs on: worker.

    Life: for each step ``prepare``, ``forward`` and ``observe``.
    """

    def __init__(self, model: SpeculativeLM, drafter: Drafter) -> None:
        self._model = model
        self._drafter = drafter
        self._features: torch.Tensor | None = None

    @property
    def decode_tokens(self) -> int:
        """How many tokens a decode computes, at most."""
        return 1 + self._drafter.tokens

    def prepare(self, plan: Plan[JobSequence]) -> None:
        """Guess how the sequences go on that decode in this step."""
        for sequence in plan:
            if sequence.drafting is None and sequence.tokens_left > 1:
                sequence.start_drafting(self._drafter.new_state())
        wanting = [
            (sequence, sequence.drafting)
            for sequence in plan.decodes
            # The last token's successor is nobody's concern.
            if sequence.drafting and sequence.drafting.wants_drafts and sequence.tokens_left > 1
        ]
        if not wanting:
            return
        rows = [_Row(sequence.sampling, copy(sequence.rng)) for sequence, _ in wanting]

        def choose(logits: torch.Tensor) -> list[int]:
            # Where there is nothing to choose, any guess is as good.
            return [token_id or 0 for token_id in sample(logits, rows)]

        guesses = self._drafter.draft([drafting.memory for _, drafting in wanting], choose)
        for (sequence, drafting), token_ids in zip(wanting, guesses, strict=True):
            drafting.propose(token_ids[: sequence.tokens_left - 1])

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """As the model's."""
        self._features = self._model.advance(chunks)
        return self._model.logits(self._features, chunks)

    def observe(self, sequences: Sequence[JobSequence], chunks: Sequence[Chunk]) -> None:
        """Let the drafter know how the sequences of the last ``forward`` went on."""
        assert self._features is not None
        start = 0
        for sequence, chunk in zip(sequences, chunks, strict=True):
            stop = start + len(chunk.token_ids)
            if sequence.drafting is not None:
                sequence.drafting.observe(self._features[start:stop])
            start = stop
        self._features = None


def speculation(model: CausalLM) -> Speculation | None:
    """None if the model makes no guesses."""
    if isinstance(model, SpeculativeLM) and model.drafter is not None:
        return Speculation(model, model.drafter)
    return None
