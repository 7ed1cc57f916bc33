"""Guesses of what a sequence goes on with, by the layer of token prediction.

Shapes: T tokens, M streams, N hidden size, Q sequences.
Source: DeepSeek-V3 report §2.2 (arXiv 2412.19437). That one layer, trained to look one token
further, is asked again for each token further ahead is what vLLM and SGLang do, too.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from ds4trio.models.deepseek_v4.attention import Piece
from ds4trio.models.deepseek_v4.rotation import rotation
from ds4trio.models.deepseek_v4.state import LayerState
from ds4trio.models.deepseek_v4.vocabulary import vocabulary_logits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.models.base import DraftState
    from ds4trio.models.deepseek_v4.config import DeepseekV4Config
    from ds4trio.models.deepseek_v4.mtp import MtpLayer


class MtpState:
    """What the layer remembers of one sequence.

    Only the distance of two tokens matters to it, and nothing further back than its window. So
    positions are counted from where it began to watch, which may be anywhere.
    """

    def __init__(self, layer: LayerState, streams: torch.Tensor) -> None:
        """``streams``: none yet, (0, M, N)."""
        self.layer = layer
        self.position = 0
        self._streams = streams
        self._token_ids: list[int] = []

    def observe(self, features: torch.Tensor, next_ids: Sequence[int]) -> None:
        """Wait with it for the next ``draft``: a long prompt passes by without being computed."""
        window = len(self.layer.window.rows)
        self._streams = torch.cat((self._streams, features))[-window:]
        self._token_ids = [*self._token_ids, *next_ids][-window:]

    def take(self) -> tuple[torch.Tensor, list[int]]:
        """What was observed since the last time. Shapes: (T, M, N) and T token ids."""
        taken = self._streams, self._token_ids
        self._streams, self._token_ids = self._streams[:0], []
        return taken


class MtpDrafter:
    """Guesses ``tokens`` tokens ahead. ``dtype``: of activations and states."""

    def __init__(
        self,
        config: DeepseekV4Config,
        layer: MtpLayer,
        *,
        embedding: torch.Tensor,
        head: torch.Tensor,
        frequencies: torch.Tensor,
        dtype: torch.dtype,
        tokens: int,
    ) -> None:
        """Shapes: embedding and head (vocabulary, N); frequencies (R / 2,), of a window's keys."""
        self.tokens = tokens
        self._config = config
        self._layer = layer
        self._embedding = embedding
        self._head = head
        self._frequencies = frequencies
        self._dtype = dtype

    @torch.inference_mode()
    def new_state(self) -> MtpState:
        config, device = self._config, self._frequencies.device
        none = torch.empty(
            (0, config.streams, config.hidden_size), dtype=self._dtype, device=device
        )
        return MtpState(LayerState(config, None, self._dtype, device), none)

    @torch.inference_mode()
    def draft(
        self,
        states: Sequence[DraftState],
        choose: Callable[[torch.Tensor], Sequence[int]],
    ) -> list[list[int]]:
        watching = [_watching(state) for state in states]
        taken = [state.take() for state in watching]
        chosen: list[Sequence[int]] = []
        streams = self._advance(watching, [t for t, _ in taken], [ids for _, ids in taken])
        held = [state.layer.hold(state.position, self.tokens - 1) for state in watching]
        while True:
            logits = vocabulary_logits(self._layer.finish(streams), self._head)
            chosen.append(choose(logits))
            if len(chosen) == self.tokens:
                break
            streams = self._advance(watching, torch.split(streams, 1), [[i] for i in chosen[-1]])
        for state, before in zip(watching, held, strict=True):
            state.layer.take_back(before, before.position, state.position)
            state.position = before.position
        return [list(ids) for ids in zip(*chosen, strict=True)]

    def _advance(
        self,
        states: Sequence[MtpState],
        streams: Sequence[torch.Tensor],
        token_ids: Sequence[Sequence[int]],
    ) -> torch.Tensor:
        """The layer's streams of each sequence's last token. Shapes: returns (Q, M, N)."""
        device = self._frequencies.device
        sizes = [len(ids) for ids in token_ids]
        stops = list(accumulate(sizes))
        pieces: list[Piece] = []
        positions: list[int] = []
        for state, size, stop in zip(states, sizes, stops, strict=True):
            pieces.append(Piece(stop - size, stop, state.position, state.layer))
            positions += range(state.position, state.position + size)
            state.position += size
        ids = torch.tensor([i for part in token_ids for i in part], device=device)
        out = self._layer.advance(
            torch.cat(list(streams)),
            self._embedding[ids].to(self._dtype),
            ids,
            rotation(torch.tensor(positions, device=device), self._frequencies),
            pieces,
        )
        return out[torch.tensor(stops, device=device) - 1]


def _watching(state: DraftState) -> MtpState:
    assert isinstance(state, MtpState)
    return state
