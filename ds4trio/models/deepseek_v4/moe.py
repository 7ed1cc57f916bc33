"""Mixture of experts: who answers for a token, and the answers weighed.

Shapes: T tokens, N hidden size, E experts, A experts a token, I expert size.
Source: paper §2.1; official code, ``Gate``, ``Expert`` and ``MoE``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import linear, silu, softplus

from ds4trio.models.deepseek_v4.matrix import Linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.models.deepseek_v4.config import DeepseekV4Config


class Routes(NamedTuple):
    """Each token's experts and what each counts."""

    experts: torch.Tensor  # (T, A) int64
    weights: torch.Tensor  # (T, A) float32


@dataclass(frozen=True, slots=True)
class Router:
    """Scores every expert; the best scores choose, or a table of token ids does."""

    config: DeepseekV4Config
    weight: torch.Tensor  # (E, N) float32
    #: Added to the scores for the choice, not for the weights.
    bias: torch.Tensor | None  # (E,) float32
    table: torch.Tensor | None  # (vocabulary, A) int64

    def __call__(self, x: torch.Tensor, token_ids: torch.Tensor) -> Routes:
        """Shapes: x (T, N), token_ids (T,)."""
        logits = linear(x.to(torch.float32), self.weight)
        sigmoid = self.config.scores == "sigmoid"
        scores = logits.sigmoid() if sigmoid else softplus(logits).sqrt()
        if self.table is not None:
            experts = self.table[token_ids]
        else:
            biased = scores if self.bias is None else scores + self.bias
            experts = biased.topk(self.config.experts_per_token, -1, sorted=False).indices
        weights = scores.gather(-1, experts)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # all scores may be 0
        return Routes(experts, weights * self.config.routed_scale)


@dataclass(frozen=True, slots=True)
class Expert:
    """A gated linear unit with bounds on what enters the gate."""

    gate: Linear  # (I, N)
    up: Linear  # (I, N)
    down: Linear  # (N, I)
    limit: float

    @property
    def nbytes(self) -> int:
        return self.gate.matrix.nbytes + self.up.matrix.nbytes + self.down.matrix.nbytes

    def __call__(self, x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x (T, N), weights (T,); returns (T, N)."""
        gate = self.gate(x).to(torch.float32).clamp_(max=self.limit)
        up = self.up(x).to(torch.float32).clamp_(-self.limit, self.limit)
        inner = silu(gate) * up
        if weights is not None:
            inner *= weights.unsqueeze(-1)
        return self.down(inner.to(x.dtype))

    def to(self, device: torch.device) -> Expert:
        return self._each(lambda part: Linear(part.matrix.to(device), part.simulate))

    def pinned(self) -> Expert:
        """A copy in page-locked memory."""
        return self._each(lambda part: Linear(part.matrix.pinned(), part.simulate))

    def _each(self, change: Callable[[Linear], Linear]) -> Expert:
        return Expert(change(self.gate), change(self.up), change(self.down), self.limit)


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """One layer's experts: the chosen ones, and one that answers every token."""

    router: Router
    experts: Sequence[Expert]
    shared: Expert

    def __call__(self, x: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Shapes: x (T, N), token_ids (T,); returns (T, N)."""
        routed = self._routed(x, self.router(x, token_ids))
        return (routed + self.shared(x)).to(x.dtype)

    def _routed(self, x: torch.Tensor, routes: Routes) -> torch.Tensor:
        """Each expert in use once, with all its tokens side by side. Returns float32."""
        chosen = routes.experts.flatten()
        order = chosen.argsort(stable=True)
        asked = x[order // routes.experts.shape[1]]
        weights = routes.weights.flatten()[order]
        counts = chosen.bincount(minlength=len(self.experts)).tolist()  # waits for a GPU
        answers = torch.empty_like(asked, dtype=torch.float32)
        start = 0
        for expert, count in enumerate(counts):
            if count:
                part = slice(start, start + count)
                answers[part] = self.experts[expert](asked[part], weights[part])
                start += count
        # Back in the tokens' order, and summed in the order of choice whoever shares the batch.
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return answers[back].view(len(x), -1, x.shape[1]).sum(1)
