"""Weight matrices as a checkpoint stores them, expanded only where they are used.

So a model needs about its file's size, and what is memory-mapped stays so. Expanding is exact
wherever the target type can hold the product of code and scale (float32 always).

Shapes: N rows (outputs), K columns (inputs).
Source: the release's ``convert.py``; OCP Microscaling Formats 1.0 for E2M1 and E8M0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import embedding, linear

from ds4trio.models.deepseek_v4.config import FP8_BLOCK

#: Columns of an FP4 matrix that share a scale.
FP4_BLOCK = 32
#: The sixteen values of E2M1: sign, two bits of exponent, one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class Matrix(Protocol):
    """A weight matrix in some storage."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...

    @property
    def quantised(self) -> bool:
        """Whether the release multiplies it with activations in FP8."""
        ...

    def expand(self, dtype: torch.dtype) -> torch.Tensor:
        """Shapes: returns (N, K). Not to be written to."""
        ...

    def to(self, device: torch.device) -> Matrix: ...

    def pinned(self) -> Matrix:
        """A copy in page-locked memory, from which a GPU copies fastest."""
        ...


@dataclass(frozen=True, slots=True)
class PlainMatrix:
    """Numbers of a floating point type."""

    weight: torch.Tensor  # (N, K)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    @property
    def quantised(self) -> bool:
        return False

    def expand(self, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.to(dtype)

    def to(self, device: torch.device) -> PlainMatrix:
        return PlainMatrix(self.weight.to(device, non_blocking=True))

    def pinned(self) -> PlainMatrix:
        return PlainMatrix(self.weight.pin_memory())


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """E4M3 codes with a scale (E8M0 or F32) for each block of 128 by 128."""

    codes: torch.Tensor  # (N, K) float8_e4m3fn
    scales: torch.Tensor  # (ceil(N / 128), ceil(K / 128))

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    @property
    def quantised(self) -> bool:
        return True

    def expand(self, dtype: torch.dtype) -> torch.Tensor:
        rows, columns = self.codes.shape
        weight = self.codes.to(torch.float32)
        scales = self.scales.to(torch.float32)
        if rows % FP8_BLOCK == 0 and columns % FP8_BLOCK == 0:
            blocks = weight.view(rows // FP8_BLOCK, FP8_BLOCK, columns // FP8_BLOCK, FP8_BLOCK)
            blocks.mul_(scales[:, None, :, None])
        else:
            scales = scales.repeat_interleave(FP8_BLOCK, 1)[:, :columns]
            weight.mul_(scales.repeat_interleave(FP8_BLOCK, 0)[:rows])
        return weight.to(dtype)

    def to(self, device: torch.device) -> Fp8Matrix:
        return Fp8Matrix(
            self.codes.to(device, non_blocking=True), self.scales.to(device, non_blocking=True)
        )

    def pinned(self) -> Fp8Matrix:
        return Fp8Matrix(self.codes.pin_memory(), self.scales.pin_memory())


@dataclass(frozen=True, slots=True)
class Fp4Matrix:
    """E2M1 codes, two a byte with the even column in the low bits; E8M0 scales of 32 columns."""

    codes: torch.Tensor  # (N, K / 2) int8
    scales: torch.Tensor  # (N, K / 32)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    @property
    def quantised(self) -> bool:
        return True

    def expand(self, dtype: torch.dtype) -> torch.Tensor:
        rows = len(self.codes)
        codes = self.codes.view(torch.uint8).to(torch.int32)
        pairs = embedding(codes, _pairs(self.codes.device))  # (N, K / 2, 2)
        weight = pairs.view(rows, -1, FP4_BLOCK)
        weight.mul_(self.scales.to(torch.float32).unsqueeze(-1))
        return weight.view(rows, -1).to(dtype)

    def to(self, device: torch.device) -> Fp4Matrix:
        return Fp4Matrix(
            self.codes.to(device, non_blocking=True), self.scales.to(device, non_blocking=True)
        )

    def pinned(self) -> Fp4Matrix:
        return Fp4Matrix(self.codes.pin_memory(), self.scales.pin_memory())


def _pairs(device: torch.device) -> torch.Tensor:
    """The two values that a byte stands for. Shapes: returns (256, 2)."""
    values = torch.tensor(E2M1, dtype=torch.float32, device=device)
    return torch.stack((values.repeat(16), values.repeat_interleave(16)), -1)


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection without bias."""

    matrix: Matrix
    #: Round what enters as the release's FP8 kernels do (``simulation``).
    simulate: bool = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x (..., K); returns (..., N)."""
        if self.simulate and self.matrix.quantised:
            x = fp8_round_trip(x, FP8_BLOCK)
        return linear(x, self.matrix.expand(x.dtype))


def fp8_round_trip(x: torch.Tensor, block: int) -> torch.Tensor:
    """What is left of ``x`` after E4M3 with a power-of-two scale for each block of features.

    Source: official ``kernel.py``, ``act_quant`` with ``scale_fmt`` ue8m0.
    """
    blocks = _blocks(x, block)
    scale = _power_of_two(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448.0)
    codes = (blocks / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return (codes.to(torch.float32) * scale).reshape(x.shape).to(x.dtype)


def fp4_round_trip(x: torch.Tensor, block: int) -> torch.Tensor:
    """What is left of ``x`` after E2M1 with a power-of-two scale for each block of features.

    To the nearest value, the one with an even code where two are as near.
    Source: official ``kernel.py``, ``fp4_act_quant``.
    """
    blocks = _blocks(x, block)
    least = 6.0 * 2.0**-126
    scale = _power_of_two(blocks.abs().amax(-1, keepdim=True).clamp_min(least) / 6.0)
    ratio = (blocks / scale).clamp(-6.0, 6.0)
    # Values lie 1/2 apart below 2, 1 apart below 4, 2 apart above; round() goes to even.
    step = torch.where(ratio.abs() < 2, 0.5, torch.where(ratio.abs() < 4, 1.0, 2.0))
    nearest = torch.round(ratio / step) * step
    return (nearest * scale).reshape(x.shape).to(x.dtype)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The normalised Walsh-Hadamard transform of the last axis, a power of two long.

    Source: official code, ``rotate_activation``.
    """
    size = x.shape[-1]
    flat = x.to(torch.float32).reshape(-1, size)
    width = 1
    while width < size:
        pairs = flat.view(-1, size // (2 * width), 2, width)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        flat = torch.stack((first + second, first - second), 2).view(-1, size)
        width *= 2
    return (flat / math.sqrt(size)).reshape(x.shape).to(x.dtype)


def _blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """Shapes: x (..., D); returns (..., D / block, block).

    (Blocks are smaller in small models, where ``block`` does not divide D.)
    """
    size = math.gcd(x.shape[-1], block)
    return x.to(torch.float32).reshape(*x.shape[:-1], -1, size)


def _power_of_two(x: torch.Tensor) -> torch.Tensor:
    """The least power of two that is not below ``x``, which is above 0."""
    mantissa, exponent = torch.frexp(x)  # mantissa in [1/2, 1)
    return torch.ldexp(torch.ones_like(x), exponent - (mantissa == 0.5).to(exponent.dtype))
