"""Which tokens may come next in one sequence: stop ids, the end of its thoughts, its constraint.

::

    thinking  -- thinking_end sampled, or forced by the budget -->  answering
    (free, but must not end if a constraint waits)                  (under the constraint, if any)

Knows nothing of text and grammars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ds4trio.errors import RequestError

if TYPE_CHECKING:
    from ds4trio.engine.job import EngineRequest, TokenMatcher


class Guide:
    """Runs on: worker."""

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self._thinking = bool(request.thinking_end)
        self._recent: tuple[int, ...] = ()  # no more tokens than thinking_end has
        self._generated = 0
        self._matcher: TokenMatcher | None = None
        self.is_complete = False
        """Whether the constraint lets nothing follow."""

    @staticmethod
    def is_needed(request: EngineRequest) -> bool:
        """Whether it would ever forbid anything."""
        return (
            request.constraint is not None
            or request.thinking_budget is not None
            or bool(request.min_tokens and request.stop_ids)
        )

    @property
    def may_forbid(self) -> bool:
        """Whether ``apply_`` may have something to do for the next token."""
        request = self._request
        return (
            request.constraint is not None
            or self._generated < request.min_tokens
            or (self._thinking and request.thinking_budget is not None)
        )

    def append(self, token_id: int) -> None:
        """The answer has one more token."""
        self._generated += 1
        if self._thinking:
            end = self._request.thinking_end
            self._recent = (*self._recent, token_id)[-len(end) :]
            self._thinking = self._recent != end
        elif self._matcher is not None:
            self._matcher.accept(token_id)
            self.is_complete = self._matcher.is_complete

    def apply_(self, logits: torch.Tensor) -> None:
        """Forbid in place what must not come next; all of it if the sequence ``is_complete``.

        Shapes: logits (V,). Raises: RequestError, if the constraint cannot be held.
        """
        request = self._request
        budget = request.thinking_budget
        if self._thinking and budget is not None and self._generated >= budget:
            logits.fill_(-torch.inf)
            logits[self._next_of_thinking_end()] = 0.0
        elif request.constraint is not None and not self._thinking:
            self._constrain_(logits)
        elif self._generated < request.min_tokens or request.constraint is not None:
            logits[self._stop_ids(len(logits))] = -torch.inf

    def _stop_ids(self, vocabulary: int) -> list[int]:
        return [token_id for token_id in self._request.stop_ids if token_id < vocabulary]

    def _next_of_thinking_end(self) -> int:
        """The first token of it that is not there yet."""
        end, recent = self._request.thinking_end, self._recent
        return next(
            end[n] for n in reversed(range(len(end))) if recent[len(recent) - n :] == end[:n]
        )

    def _constrain_(self, logits: torch.Tensor) -> None:
        if self._matcher is None:
            assert self._request.constraint is not None
            self._matcher = self._request.constraint.new_matcher()
        allowed = self._matcher.allowed()[: len(logits)]
        may_end = self._matcher.may_end
        ends = may_end and self._generated >= self._request.min_tokens
        mask = np.zeros(len(logits), dtype=np.uint8)
        mask[: len(allowed)] = allowed
        mask[self._stop_ids(len(logits))] = ends
        if not mask.any():
            if not may_end:
                raise RequestError("No token of the model goes on with what the answer must be.")
            self.is_complete = True
        # 1 - 1/1 = 0, 1 - 1/0 = -inf: on a CPU masked_fill takes several times as long.
        logits += 1 - torch.from_numpy(mask).to(logits.device, torch.float32).reciprocal_()
