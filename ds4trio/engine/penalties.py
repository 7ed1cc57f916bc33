"""Penalties and biases of one sequence: what its settings do to the model's logits.

In this order: ``repetition_penalty`` divides the positive logits of tokens in the prompt and the
answer, and multiplies the negative ones; then ``presence_penalty`` (once) and ``frequency_penalty``
(per occurrence) are subtracted from those of tokens in the answer, and ``logit_bias`` is added.
Source: Keskar et al. 2019, section 4.1; OpenAI's API reference; the order is vLLM's.

Shapes: V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.request import SamplingParams


class Penalties:
    """Kept up to date token by token, so a step costs the same however long the sequence is.

    Memory: up to 8 bytes for each token of the vocabulary. Runs on: worker.
    """

    def __init__(self, sampling: SamplingParams, prompt: Sequence[int], like: torch.Tensor) -> None:
        """``like``: a row of logits (V,)."""
        self._sampling = sampling
        self._offset = torch.zeros_like(like)  # (V,)
        if bias := sampling.logit_bias:
            ids = torch.tensor(list(bias), device=like.device)
            self._offset[ids] = like.new_tensor(list(bias.values()))
        self._answered: set[int] = set()
        self._factor: torch.Tensor | None = None  # (V,): 1, or repetition_penalty
        if sampling.repetition_penalty != 1:
            self._factor = torch.ones_like(like)
            seen = torch.tensor(list(set(prompt)), device=like.device)
            self._factor[seen] = sampling.repetition_penalty

    @staticmethod
    def are_in(sampling: SamplingParams) -> bool:
        """Whether these settings have any."""
        return bool(
            sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1
            or sampling.logit_bias
        )

    def append(self, token_id: int) -> None:
        """The answer has one more token."""
        penalty = self._sampling.frequency_penalty
        if token_id not in self._answered:
            self._answered.add(token_id)
            penalty += self._sampling.presence_penalty
            if self._factor is not None:
                self._factor[token_id] = self._sampling.repetition_penalty
        if penalty:
            self._offset[token_id] -= penalty

    def apply_(self, logits: torch.Tensor) -> None:
        """Change the logits of the next token in place. Shapes: logits (V,)."""
        if self._factor is not None:
            # Not torch.where, which is ten times slower on a CPU.
            positive = logits.clamp(min=0).div_(self._factor)
            logits.clamp_(max=0).mul_(self._factor).add_(positive)
        logits += self._offset
