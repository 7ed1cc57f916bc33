"""A piece of what a model remembers of a sequence, and where pieces are kept beyond memory.

A sequence's state after n tokens is a *chain* of segments: the first starts at 0, each next one
where the one before stops, the last stops at n::

    [0 ............ 512) [512 ... 800) [800 .......... 1300)
      rows                 rows, tip      rows, tip

*Rows* are what the tokens of a segment have added for good; all segments of a chain together have
all of them. A *tip* is what a model remembers only for as long as it stands at a place (a sliding
window, a part-filled one), and holds at the segment's ``stop`` alone. A model without tips (a dense
one) can go on from any place of a chain; one with tips only where a tip was kept, which every
segment that another one hangs on may have lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ds4trio.models.base import TIP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """What the tokens of positions ``start`` to ``stop`` - 1 have left behind.

    ``token_ids`` are those tokens, ``stop - start`` of them, at least one. ``tensors`` are by names
    of the model's own choice, fit for a safetensors file; whoever holds a segment must not write
    to them, and nobody ever does. They are contiguous, lie on the model's device, and have the
    types of its state. Those whose names begin with ``TIP`` are the tip, the others rows.

    Shapes: in a tensor of rows, the last axis but one counts rows, and a row may stand for several
    tokens: that of r tokens has rows ``start // r`` to ``stop // r`` - 1, which may be none.
    """

    start: int
    stop: int
    token_ids: tuple[int, ...]
    tensors: Mapping[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def tip(self) -> dict[str, torch.Tensor]:
        """Empty if there is none."""
        return {n: tensor for n, tensor in self.tensors.items() if n.startswith(TIP)}

    @property
    def rows(self) -> dict[str, torch.Tensor]:
        return {n: tensor for n, tensor in self.tensors.items() if not n.startswith(TIP)}

    @property
    def has_tip(self) -> bool:
        return any(name.startswith(TIP) for name in self.tensors)


class SegmentStore(Protocol):
    """Where chains outlive memory: slower, larger (files, say). Runs on: worker."""

    def find(self, token_ids: Sequence[int], at_least: int, held: int = 0) -> Sequence[Segment]:
        """The longest chain, of whole segments, that ``token_ids`` begin with, if it is
        ``at_least`` so many tokens long; else none. Of a model with tips, one that ends in a tip.

        The asker has the rows of the first ``held`` tokens: segments of these alone are left out,
        so what is returned may start anywhere up to there.
        Blocks the worker, and with it everybody, for as long as it takes; tensors may still be
        mapped files. Whatever is wrong with what is kept, it is not found; nothing is raised.
        """
        ...

    def offer(self, chain: Sequence[Segment], places: Sequence[int] = ()) -> None:
        """This was computed, and is worth keeping. Returns at once, whatever comes of it.

        ``places``: lengths at which others are likely to go on otherwise (some may lie beyond it).
        Chains are offered again and again while they grow, and with borders between segments that
        differ from those of before: what is kept already need not be written again.
        """
        ...

    def drop(self, token_ids: Sequence[int]) -> None:
        """Going on from what is kept of the beginning of these tokens has failed: it must not be
        found again.
        """
        ...
