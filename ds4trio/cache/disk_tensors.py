"""Between a model's tensors and bytes. Runs on: worker, like all that touches torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from ds4trio.cache.disk_format import Stored
from ds4trio.cache.segment import Segment
from ds4trio.models.base import TIP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.models.base import CausalLM

_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_TYPES = {kind: dtype for dtype, kind in _KINDS.items()}


class RowKind(NamedTuple):
    """Of a tensor of rows. ``shape`` is without the axis that counts them."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateKind:
    """How a model's states look: ``rows`` and ``tips`` by name, and how many tokens a row of each
    tensor of rows stands for."""

    row_tokens: Mapping[str, int]
    rows: Mapping[str, RowKind]
    tips: Mapping[str, torch.dtype]
    device: torch.device

    @classmethod
    def of(cls, model: CausalLM) -> StateKind:
        """Read off a state that holds nothing yet."""
        empty = model.new_state().save(0)
        return cls(
            {name: rows.tokens for name, rows in model.state_layout.rows.items()},
            {name: _row_kind(t) for name, t in empty.items() if not name.startswith(TIP)},
            {name: t.dtype for name, t in empty.items() if name.startswith(TIP)},
            model.device,
        )

    @property
    def words(self) -> str:
        """What must be the same for a state to be taken over."""
        rows = [f"{name} {kind.dtype} {list(kind.shape)}" for name, kind in self.rows.items()]
        tips = [f"{name} {dtype}" for name, dtype in self.tips.items()]
        return "; ".join(sorted(rows) + sorted(tips))

    def fits(self, segment: Segment) -> bool:
        """Whether these are tensors that a state could have saved, with a tip or without."""
        rows = {n: t for n, t in segment.tensors.items() if not n.startswith(TIP)}
        tips = {n: t.dtype for n, t in segment.tensors.items() if n.startswith(TIP)}
        return (
            {name: _row_kind(tensor) for name, tensor in rows.items()} == self.rows
            and all(
                rows[name].shape[-2] == segment.stop // per - segment.start // per
                for name, per in self.row_tokens.items()
            )
            and tips in ({}, self.tips)
        )

    def part(self, chain: Sequence[Segment], start: int, stop: int) -> Segment:
        """A part of a chain as one segment, with the tip if there is one at its end.

        Its tensors are views, unless it lies across a border.
        """
        inside = [segment for segment in chain if segment.start < stop and segment.stop > start]
        tensors = {name: self._rows(inside, name, start, stop) for name in self.row_tokens}
        last = inside[-1]
        if last.stop == stop:
            tensors |= {name: t for name, t in last.tensors.items() if name.startswith(TIP)}
        token_ids = [token_id for segment in inside for token_id in segment.token_ids]
        skipped = start - inside[0].start
        return Segment(start, stop, tuple(token_ids[skipped : skipped + stop - start]), tensors)

    def _rows(self, inside: Sequence[Segment], name: str, start: int, stop: int) -> torch.Tensor:
        per = self.row_tokens[name]
        parts = []
        for segment in inside:
            first = max(start, segment.start) // per
            end = min(stop, segment.stop) // per
            skipped = first - segment.start // per
            parts.append(segment.tensors[name].narrow(-2, skipped, end - first))
        return torch.cat(parts, -2) if len(parts) > 1 else parts[0]


def _row_kind(tensor: torch.Tensor) -> RowKind:
    return RowKind(tensor.dtype, (*tensor.shape[:-2], *tensor.shape[-1:]))


def stored(tensor: torch.Tensor) -> Stored:
    """As bytes: where it lies if that is the CPU's memory, else a copy."""
    data = tensor.cpu()
    if not tensor.dim() or tensor.stride(-1) != 1:
        data = data.reshape(-1)
    return Stored(_KINDS[tensor.dtype], tuple(tensor.shape), data.view(torch.uint8).numpy())


def tensor_of(stored: Stored, device: torch.device) -> torch.Tensor:
    """Raises: KeyError for a type that no state has."""
    tensor = torch.from_numpy(stored.data).view(_TYPES[stored.kind])
    return tensor.view(stored.shape).to(device)
