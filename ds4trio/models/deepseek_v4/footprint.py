"""How much a model of the release's make needs, told from its settings alone.

Knows nothing of any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.models.deepseek_v4.layout import (
    expert_tensors,
    layer_tensors,
    mtp_tensors,
    top_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ds4trio.models.deepseek_v4.config import DeepseekV4Config
    from ds4trio.models.deepseek_v4.layout import Stored


@dataclass(frozen=True, slots=True)
class Size:
    """Of a set of tensors, in the release's storage.

    ``parameters`` counts numbers a model has learnt and its tables, not the scales; ``tensors``
    counts scales.
    """

    tensors: int
    parameters: int
    nbytes: int

    def __add__(self, other: Size) -> Size:
        return Size(
            self.tensors + other.tensors,
            self.parameters + other.parameters,
            self.nbytes + other.nbytes,
        )

    def times(self, count: int) -> Size:
        return Size(self.tensors * count, self.parameters * count, self.nbytes * count)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the release's weights need, by where they may live."""

    #: What every token needs: attention, shared experts, routers, embedding, projection.
    shared: Size
    #: Routed experts of all layers.
    experts: Size
    #: The layer of token prediction, its experts too.
    mtp: Size

    @property
    def total(self) -> Size:
        return self.shared + self.experts + self.mtp


def weights_footprint(config: DeepseekV4Config) -> Footprint:
    """Of all weights in the release's storage."""
    shared = _size(top_tensors(config).values())
    for compression, hashed in zip(config.compression, config.hash_routed, strict=True):
        shared += _size(layer_tensors(config, compression, hashed).values())
    a_layer = _size(expert_tensors(config).values()).times(config.experts)
    mtp = (_size(mtp_tensors(config).values()) + a_layer).times(config.mtp_layers)
    return Footprint(shared, a_layer.times(config.layers), mtp)


def state_bytes(config: DeepseekV4Config, tokens: int, number_bytes: int) -> int:
    """Of one sequence of so many tokens. ``number_bytes``: of an activation (2 for bf16).

    Pooled rows are counted as they are used. Room for them doubles as it grows, so that up to
    twice as much may be held on the way; never more than for ``context_tokens``.
    """
    total = 0
    for compression in config.compression:
        total += config.window * config.head_dim * number_bytes
        if compression is None:
            continue
        widths = [config.head_dim, *([config.index_head_dim] if compression.sparse else [])]
        windows, parts = (2, 2) if compression.sparse else (1, 1)
        for width in widths:
            total += windows * compression.ratio * 2 * parts * width * 4  # waiting, float32
            total += tokens // compression.ratio * width * number_bytes
    return total


def _size(tensors: Iterable[Stored]) -> Size:
    total = Size(0, 0, 0)
    for stored in tensors:
        total += Size(stored.tensors, stored.parameters, stored.nbytes)
    return total
