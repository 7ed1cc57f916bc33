"""What one sequence has left behind in each layer.

A layer remembers its last ``window`` rows of keys (which are its values too), and, if it
compresses, the projections of the windows not yet pooled and a row for each that is.
A state cannot be cut back, since rows that left a ring are gone; but it can be saved at any
length and restored exactly, and it can hold on to the few rows that the next few tokens replace.
Source: paper §2.3; transformers' ``DeepseekV4CSACache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ds4trio.models.base import TIP, Rows, StateLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
        # Of an overlapping window's predecessor other features are read.
        parts = 2 if compression.sparse else 1
        # In float32: the release sums a window's tokens up without rounding them first.
        self.waiting = Ring(compression.waiting_tokens, 2 * parts * width, torch.float32, device)
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

    def cut_back(self, count: int) -> None:
        """To the first ``count`` rows."""
        self._count = count

    def append(self, rows: torch.Tensor) -> None:
        needed, room = self._count + len(rows), len(self._rows)
        if needed > room:
            self.allocate(max(needed, min(max(2 * room, _FIRST_ROWS), self._most)))
        self._rows[self._count : needed] = rows
        self._count = needed

    def allocate(self, rows: int) -> None:
        """Have room for so many rows in all."""
        room, width = self._rows.shape
        if rows > room:
            grown = self._rows.new_empty((rows, width))
            grown[: self._count] = self.rows
            self._rows = grown


class Held(NamedTuple):
    """What a layer's rings had where tokens from ``position`` on were put."""

    position: int
    rows: list[torch.Tensor]


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

    @property
    def rings(self) -> list[Ring]:
        return [self.window, *(part.waiting for part in self.parts.values())]

    def hold(self, position: int, count: int) -> Held:
        """What the next ``count`` tokens, of ``position`` and the following, will replace.

        Raises: ValueError if they are more than a ring has room for.
        """
        if count > min(len(ring.rows) for ring in self.rings):
            raise ValueError(f"{count} tokens could not be taken back")
        stop = position + count
        return Held(position, [ring.between(position, stop) for ring in self.rings])

    def take_back(self, held: Held, position: int, stop: int) -> None:
        """Forget the tokens of ``position`` to ``stop`` - 1, which came after ``held``."""
        lost = slice(position - held.position, stop - held.position)
        for ring, rows in zip(self.rings, held.rows, strict=True):
            ring.put(rows[lost], position)
        for part in self.parts.values():
            part.cut_back(position // part.ratio)


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
        self._held: list[Held] = []

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    @property
    def layout(self) -> StateLayout:
        rows = {}
        for name, part in self._parts():
            width = part.rows.shape[1]
            rows[f"{name}.rows"] = Rows(part.ratio, width * part.rows.itemsize)
        rings = [ring for _, ring in self._rings()]
        return StateLayout(rows, tip_bytes=sum(ring.rows.nbytes for ring in rings))

    @torch.inference_mode()
    def allocate(self, tokens: int) -> None:
        """Have room for so many tokens in all."""
        for _, part in self._parts():
            part.allocate(tokens // part.ratio)

    @torch.inference_mode()
    def hold(self, tokens: int) -> None:
        self._held = [layer.hold(self.length, tokens) for layer in self.layers]

    @torch.inference_mode()
    def settle(self, length: int) -> None:
        for layer, held in zip(self.layers, self._held, strict=True):
            layer.take_back(held, length, self.length)
        self._held = []
        self.length = length

    def save(self, start: int) -> dict[str, torch.Tensor]:
        """Copies of the rows pooled since ``start``, and of the rings, which are the tip."""
        tip = {f"{TIP}{name}": _written(ring, self.length) for name, ring in self._rings()}
        return tip | {
            f"{name}.rows": part.rows[start // part.ratio :].clone() for name, part in self._parts()
        }

    @torch.inference_mode()
    def restore(self, pieces: Sequence[Mapping[str, torch.Tensor]], length: int) -> None:
        """Make this fresh state what was saved, piece by piece, up to ``length`` tokens.

        Raises: ValueError if this is of another model or length.
        """
        if self.length or ((pieces or length) and _kinds(pieces) != self._kinds(length)):
            raise ValueError("the saved state is of another model or another length")
        for name, part in self._parts():
            part.allocate(length // part.ratio)
            for piece in pieces:
                part.append(piece[f"{name}.rows"])
        for name, ring in self._rings() if pieces else ():
            ring.put(pieces[-1][f"{TIP}{name}"], 0)
        self.length = length

    def _kinds(self, length: int) -> dict[str, _Kind]:
        """Of what is saved at a length."""
        kinds = {}
        for name, ring in self._rings():
            size, width = ring.rows.shape
            kinds[f"{TIP}{name}"] = _Kind(min(length, size), (width,), ring.rows.dtype)
        for name, part in self._parts():
            width = part.rows.shape[1]
            kinds[f"{name}.rows"] = _Kind(length // part.ratio, (width,), part.rows.dtype)
        return kinds

    def _parts(self) -> Iterator[tuple[str, PooledState]]:
        """What pools, by name."""
        for index, layer in enumerate(self.layers):
            for name, part in layer.parts.items():
                yield f"{index}.{name}", part

    def _rings(self) -> Iterator[tuple[str, Ring]]:
        """What forgets, by name."""
        for index, layer in enumerate(self.layers):
            yield f"{index}.window", layer.window
            for name, part in layer.parts.items():
                yield f"{index}.{name}.waiting", part.waiting


class _Kind(NamedTuple):
    """What must agree for a tensor to be taken over."""

    rows: int
    row: tuple[int, ...]
    dtype: torch.dtype


def _kinds(pieces: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, _Kind]:
    """Of all pieces' rows joined, and the last one's tip."""
    kinds: dict[str, _Kind] = {}
    for piece in pieces:
        for name, tensor in piece.items():
            kind = _Kind(len(tensor), tuple(tensor.shape[1:]), tensor.dtype)
            before = kinds.get(name)
            if before is None or name.startswith(TIP) or before[1:] != kind[1:]:
                kinds[name] = kind
            else:
                kinds[name] = kind._replace(rows=before.rows + kind.rows)
    return kinds


def _written(ring: Ring, length: int) -> torch.Tensor:
    """The rows of a ring that were written, where they lie."""
    return ring.rows[: min(length, len(ring.rows))].clone()
