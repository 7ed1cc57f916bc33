"""Keys and values of one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ds4trio.models.base import Rows, StateLayout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.models.base import Chunk
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

    @property
    def layout(self) -> StateLayout:
        layers, heads, _, head_dim = self._kv.shape
        return StateLayout({"kv": Rows(1, layers * heads * head_dim * self._kv.itemsize)})

    def save(self, start: int) -> dict[str, torch.Tensor]:
        """Shapes: kv (layers, 2 * kv heads, length - start, head_dim)."""
        return {"kv": self._kv[:, :, start : self.length].clone()}

    @torch.inference_mode()
    def restore(self, pieces: Sequence[Mapping[str, torch.Tensor]], length: int) -> None:
        """Raises: ValueError if this is of another model or length."""
        kinds = {(t.shape[:2], t.shape[3:], t.dtype) for piece in pieces for t in piece.values()}
        kind = (self._kv.shape[:2], self._kv.shape[3:], self._kv.dtype)
        same = all(piece.keys() == {"kv"} for piece in pieces) and kinds <= {kind}
        if self.length or not same or sum(piece["kv"].shape[2] for piece in pieces) != length:
            raise ValueError("the saved state is of another model or another length")
        self.reserve(length)
        start = 0
        for piece in pieces:
            stop = start + piece["kv"].shape[2]
            self._kv[:, :, start:stop] = piece["kv"]
            start = stop
        self.length = length

    def reserve(self, tokens: int) -> None:
        """Make room for so many more tokens."""
        room, needed = self._kv.shape[2], self.length + tokens
        if needed > room:
            limit = max(needed, self._context_tokens)
            self.allocate(min(max(needed, 2 * room, _FIRST_ROOM), limit))

    @torch.inference_mode()
    def allocate(self, tokens: int) -> None:
        """Have room for so many tokens in all."""
        layers, heads, room, head_dim = self._kv.shape
        if tokens <= room:
            return
        grown = self._kv.new_empty((layers, heads, tokens, head_dim))
        grown[:, :, : self.length] = self._kv[:, :, : self.length]
        self._kv = grown

    def layers(self, tokens: int) -> tuple[torch.Tensor, ...]:
        """Each layer's keys and values with ``tokens`` new places at the end, to be written.

        Shapes: (2 * kv heads, length + tokens, head_dim) a layer; keys first.
        """
        return self._kv[:, :, : self.length + tokens].unbind()


def kv_state(chunk: Chunk) -> KvState:
    """A chunk's state, which is of this family."""
    assert isinstance(chunk.state, KvState)
    return chunk.state
