"""Keys and values of one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ds4trio.models.llama.config import LlamaConfig

#: Room of a state's first allocation, in tokens: a short chat turn. A guess.
_FIRST_ROOM = 64


class KvState:
    """What one sequence has been told so far. Grows by doubling.

    Runs on: worker.
    """

    def __init__(self, config: LlamaConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.length = 0
        self._context_tokens = config.context_tokens
        # Keys and values lie side by side in the axis of heads, so that one copy writes both.
        # (layers, 2 * kv heads, room, head_dim)
        self._kv = torch.empty(
            (config.layers, 2 * config.kv_heads, 0, config.head_dim), dtype=dtype, device=device
        )

    @property
    def memory(self) -> torch.Tensor:
        """Room for keys, then values. Shapes: (layers, 2 * kv heads, room, head_dim)."""
        return self._kv

    @property
    def nbytes(self) -> int:
        return self._kv.nbytes

    def reserve(self, tokens: int) -> None:
        """Make room for so many more tokens."""
        room, needed = self._kv.shape[2], self.length + tokens
        if needed <= room:
            return
        room = min(max(needed, 2 * room, _FIRST_ROOM), max(needed, self._context_tokens))
        layers, heads, _, head_dim = self._kv.shape
        grown = self._kv.new_empty((layers, heads, room, head_dim))
        grown[:, :, : self.length] = self._kv[:, :, : self.length]
        self._kv = grown

    def layers(self, tokens: int) -> tuple[torch.Tensor, ...]:
        """Each layer's keys and values with ``tokens`` new places at the end, to be written.

        Shapes: (2 * kv heads, length + tokens, head_dim) a layer; keys first.
        """
        return self._kv[:, :, : self.length + tokens].unbind()
