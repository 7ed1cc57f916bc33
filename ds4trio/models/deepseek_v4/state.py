"""What one sequence has left behind in each layer.

A layer remembers its last ``window`` rows of keys (which are its values too), and, if it
compresses, the projections of the windows not yet pooled and a row for each that is.
A state cannot be cut back, since rows that left a ring are gone; but it can be saved at any
length and restored exactly. Source: paper §2.3; transformers' ``DeepseekV4CSACache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.models.deepseek_v4.config import Compression, DeepseekV4Config

#: Room of the first allocation of pooled rows. A guess.
_FIRST_ROWS = 16


class Ring:
    """The rows of the last ``size`` positions; position p lies at p modulo ``size``."""

    def __init__(self, size: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.empty((size, width), dtype=dtype, device=device)

    def between(self, first: int, stop: int) -> torch.Tensor:
        """The rows of positions ``first`` to ``stop`` - 1, a copy in order."""
        size = len(self.rows)
        start, end = first % size, first % size + (stop - first)
        if end <= size:
            return self.rows[start:end].clone()
        return torch.cat((self.rows[start:], self.rows[: end - size]))

    def put(self, rows: torch.Tensor, position: int) -> None:
        """Rows of ``position`` and the following, of which the last stay."""
        size = len(self.rows)
        skipped = max(0, len(rows) - size)
        rows, start = rows[skipped:], (position + skipped) % size
        head = min(len(rows), size - start)
        self.rows[start : start + head] = rows[:head]
        self.rows[: len(rows) - head] = rows[head:]


class PooledState:
    """Of one compressor: what waits to be pooled, and what is."""

    def __init__(
        self,
        compression: Compression,
        width: int,
        *,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.ratio = compression.ratio
        # An overlapping window needs its predecessor, of which other features are read.
        kept, parts = (2, 2) if compression.sparse else (1, 1)
        # In float32: the release sums a window's tokens up without rounding them first.
        self.waiting = Ring(kept * compression.ratio, 2 * parts * width, torch.float32, device)
        self._rows = torch.empty((0, width), dtype=dtype, device=device)
        self._count = 0
        self._most = context_tokens // compression.ratio

    @property
    def rows(self) -> torch.Tensor:
        """Shapes: (windows pooled, width)."""
        return self._rows[: self._count]

    @property
    def nbytes(self) -> int:
        return self.waiting.rows.nbytes + self._rows.nbytes

    def append(self, rows: torch.Tensor) -> None:
        needed = self._count + len(rows)
        room, width = self._rows.shape
        if needed > room:
            room = max(needed, min(max(2 * room, _FIRST_ROWS), self._most))
            grown = self._rows.new_empty((room, width))
            grown[: self._count] = self.rows
            self._rows = grown
        self._rows[self._count : needed] = rows
        self._count = needed


class LayerState:
    """Of one layer."""

    def __init__(
        self,
        config: DeepseekV4Config,
        compression: Compression | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def pooled(width: int) -> PooledState:
            assert compression is not None
            return PooledState(
                compression,
                width,
                context_tokens=config.context_tokens,
                dtype=dtype,
                device=device,
            )

        self.window = Ring(config.window, config.head_dim, dtype, device)
        self.pooled = pooled(config.head_dim) if compression else None
        sparse = compression is not None and compression.sparse
        self.index = pooled(config.index_head_dim) if sparse else None

    @property
    def nbytes(self) -> int:
        return self.window.rows.nbytes + sum(part.nbytes for part in self.parts.values())

    @property
    def parts(self) -> dict[str, PooledState]:
        """The compressors' states by name."""
        named = {"pooled": self.pooled, "index": self.index}
        return {name: part for name, part in named.items() if part is not None}


class DeepseekV4State:
    """Of all layers.

    Runs on: worker.
    """

    def __init__(
        self, config: DeepseekV4Config, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.length = 0
        self.layers = tuple(
            LayerState(config, compression, dtype, device) for compression in config.compression
        )

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def save(self) -> dict[str, torch.Tensor]:
        """A copy of all that was written, by name; fit for a safetensors file."""
        saved = {}
        for index, layer in enumerate(self.layers):
            saved[f"{index}.window"] = _written(layer.window, self.length)
            for name, part in layer.parts.items():
                saved[f"{index}.{name}.waiting"] = _written(part.waiting, self.length)
                saved[f"{index}.{name}.rows"] = part.rows.clone()
        return saved

    def restore(self, length: int, saved: Mapping[str, torch.Tensor]) -> None:
        """Make this fresh state what ``save`` saw when ``length`` tokens were computed.

        Raises: ValueError if ``saved`` is of another model or length.
        """
        found = {name: _Kind(tuple(t.shape), t.dtype) for name, t in saved.items()}
        if self.length or found != self._kinds(length):
            raise ValueError("the saved state is of another model or another length")
        for index, layer in enumerate(self.layers):
            layer.window.put(saved[f"{index}.window"], 0)
            for name, part in layer.parts.items():
                part.waiting.put(saved[f"{index}.{name}.waiting"], 0)
                part.append(saved[f"{index}.{name}.rows"])
        self.length = length

    def _kinds(self, length: int) -> dict[str, _Kind]:
        """Of what ``save`` returns at a length."""
        kinds = {}
        for index, layer in enumerate(self.layers):
            kinds[f"{index}.window"] = _kind(layer.window.rows, length)
            for name, part in layer.parts.items():
                kinds[f"{index}.{name}.waiting"] = _kind(part.waiting.rows, length)
                pooled, width = length // part.ratio, part.rows.shape[1]
                kinds[f"{index}.{name}.rows"] = _Kind((pooled, width), part.rows.dtype)
        return kinds


class _Kind(NamedTuple):
    """What must agree for a tensor to be taken over."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _kind(ring_rows: torch.Tensor, length: int) -> _Kind:
    size, width = ring_rows.shape
    return _Kind((min(length, size), width), ring_rows.dtype)


def _written(ring: Ring, length: int) -> torch.Tensor:
    """The rows of a ring that were written, where they lie."""
    return ring.rows[: min(length, len(ring.rows))].clone()
