"""Rotary position embedding in halves (a head's first half turns with its second).

Shapes: T tokens, H heads, D features of a head.
Source: Su et al. 2021 (arXiv 2104.09864); the scaled kinds as Hugging Face transformers defines
them in ``modeling_rope_utils``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ds4trio.models.config_fields import ConfigFields


@dataclass(frozen=True, slots=True)
class Rope:
    """Angles a position adds, and a factor on the rotated values.

    Units: ``frequencies`` in radians a position, D / 2 of them.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0
    #: Sequence length for which the scaling was made, if the kind says so.
    context_tokens: int | None = None


def read_rope(config: ConfigFields, head_dim: int, max_positions: int) -> Rope:
    """The rotary embedding that a ``config.json`` asks for, in its old form or its new one.

    Raises: LoadError naming the setting if its kind is unknown.
    """
    name = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    rope = config.section(name)
    theta = rope.number("rope_theta", config.number("rope_theta", 10000.0))
    for holder in (config, rope):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            raise holder.error("partial_rotary_factor", "a part of a head cannot be rotated")
    # In float32, because models were trained so: at large positions the rounding shows.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain: list[float] = (1.0 / theta**exponents).tolist()
    outer = config.has("original_max_position_embeddings")
    original = (config if outer else rope).integer(
        "original_max_position_embeddings", max_positions
    )
    kind_name = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(kind_name, "default")
    match kind:
        # Dynamic scaling begins beyond max_position_embeddings, which no sequence here passes.
        case "default" | "dynamic":
            return Rope(tuple(plain))
        case "linear":
            factor = rope.number("factor")
            return Rope(tuple(f / factor for f in plain))
        case "llama3":
            return Rope(tuple(_llama3(rope, plain, original)))
        case "yarn":
            return _yarn(rope, plain, theta, original, max_positions)
        case "longrope":
            return _longrope(rope, plain, original, max_positions)
        case _:
            raise rope.error(kind_name, f"{kind!r} is not supported")


def _llama3(rope: ConfigFields, plain: list[float], original: int) -> list[float]:
    """Long waves are stretched by ``factor``, short ones left, those between blended."""
    factor = rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.error("high_freq_factor", f"{high:g} is not above low_freq_factor {low:g}")
    frequencies = []
    for frequency in plain:
        waves = original * frequency / (2 * math.pi)  # in the original context
        kept = min(1.0, max(0.0, (waves - low) / (high - low)))
        frequencies.append((1 - kept) * frequency / factor + kept * frequency)
    return frequencies


def _yarn(
    rope: ConfigFields, plain: list[float], theta: float, original: int, max_positions: int
) -> Rope:
    """Source: Peng et al. 2023 (arXiv 2309.00071)."""
    factor = rope.number("factor", max_positions / original)
    half = len(plain)

    def feature_with_waves(waves: float) -> float:
        """Index of the frequency that makes so many waves in the original context."""
        return half * math.log(original / (waves * 2 * math.pi)) / math.log(theta)

    first = feature_with_waves(rope.number("beta_fast", 32.0))
    last = feature_with_waves(rope.number("beta_slow", 1.0))
    if rope.flag("truncate", default=True):
        first, last = math.floor(first), math.ceil(last)
    # The upper bound counts features, not frequencies: so do the paper's code and transformers.
    first, last = max(first, 0), min(last, 2 * half - 1)
    width = last - first or 0.001
    frequencies = []
    for index, frequency in enumerate(plain):
        stretched = min(1.0, max(0.0, (index - first) / width))
        frequencies.append(stretched * frequency / factor + (1 - stretched) * frequency)
    return Rope(
        tuple(frequencies), _yarn_scale(rope, factor), context_tokens=int(original * factor)
    )


def _yarn_scale(rope: ConfigFields, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    if rope.has("mscale") and rope.has("mscale_all_dim"):
        return mscale(rope.number("mscale")) / mscale(rope.number("mscale_all_dim"))
    return mscale(1.0)


def _longrope(rope: ConfigFields, plain: list[float], original: int, max_positions: int) -> Rope:
    """A factor for each frequency. Source: Ding et al. 2024 (arXiv 2402.13753)."""
    factors = rope.numbers("short_factor")
    if len(factors) != len(plain):
        raise rope.error("short_factor", f"has {len(factors)} factors, expected {len(plain)}")
    if rope.numbers("long_factor") != factors and max_positions > original:
        # The keys of a growing sequence would have to be turned again when it becomes long.
        raise rope.error("long_factor", "differs from short_factor, which is not supported")
    stretch = rope.number("factor", max_positions / original)
    scale = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    frequencies = tuple(f / factor for f, factor in zip(plain, factors, strict=True))
    return Rope(frequencies, rope.number("attention_factor", scale))


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines for one forward's positions. Shapes: (T, 1, D)."""

    cos: torch.Tensor
    #: The first half negated, so that a rotation is two products and one swap of halves.
    signed_sin: torch.Tensor


def rotation(
    positions: torch.Tensor, frequencies: torch.Tensor, scale: float, dtype: torch.dtype
) -> Rotation:
    """Angles are computed in float32. Shapes: positions (T,), frequencies (D / 2,)."""
    angles = torch.outer(positions.to(torch.float32), frequencies)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return Rotation(
        torch.cat((cos, cos), -1).to(dtype).unsqueeze(1),
        torch.cat((-sin, sin), -1).to(dtype).unsqueeze(1),
    )


def rotate_(heads: torch.Tensor, by: Rotation) -> None:
    """Turn heads in place. Shapes: heads (T, H, D)."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    torch.addcmul(heads * by.cos, swapped, by.signed_sin, out=heads)
