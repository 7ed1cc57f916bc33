"""Stored weights expand to the bit, over every code; and rounding is to the nearest code."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.models.deepseek_v4.matrix import (
    Fp4Matrix,
    Fp8Matrix,
    Linear,
    PlainMatrix,
    fp4_round_trip,
    fp8_round_trip,
    hadamard,
)

#: By hand, from the Microscaling specification: code to magnitude.
E2M1 = {0: 0.0, 1: 0.5, 2: 1.0, 3: 1.5, 4: 2.0, 5: 3.0, 6: 4.0, 7: 6.0}


def e4m3(byte: int) -> float:
    """By the specification: 1 sign bit, 4 of exponent with bias 7, 3 of mantissa."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def e2m1(nibble: int) -> float:
    return math.copysign(E2M1[nibble & 7], -1.0 if nibble & 8 else 1.0)


def e8m0(byte: int) -> float:
    return math.nan if byte == 255 else 2.0 ** (byte - 127)


def float32(value: float) -> float:
    """To the nearest float32, infinite beyond the largest."""
    try:
        found: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Compared as bits, so that signs of zeros count; any NaN counts as one."""
    return torch.where(tensor.isnan(), torch.nan, tensor).to(torch.float32).view(torch.int32)


def every_byte(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256).to(torch.uint8).view(dtype)


def assert_same_bits(found: torch.Tensor, expected: list[list[float]]) -> None:
    wanted = torch.tensor([[float32(value) for value in row] for row in expected])
    assert torch.equal(bits(found), bits(wanted))


def test_every_fp8_code_under_every_scale() -> None:
    """A block of each of the 256 scales, with each of the 256 codes (and some again)."""
    codes = torch.arange(128 * 128).view(128, 128).repeat(1, 256).to(torch.uint8)
    scales = every_byte(torch.float8_e8m0fnu).view(1, 256)
    found = Fp8Matrix(codes.view(torch.float8_e4m3fn), scales).expand(torch.float32)
    for block in range(256):
        part = found[:2, 128 * block : 128 * block + 128].flatten()
        assert_same_bits(part[None], [[e4m3(code) * e8m0(block) for code in range(256)]])
    assert torch.equal(bits(found[:2]), bits(found[2:4]))


def test_fp8_blocks_that_do_not_divide() -> None:
    """130 rows and 300 columns: two blocks by three, the last of each cut short."""
    codes = torch.arange(130 * 300).view(130, 300).to(torch.uint8)
    scales = torch.tensor([[1.0, 2.5, 0.1], [3.0, 1e-3, 7.0]])
    found = Fp8Matrix(codes.view(torch.float8_e4m3fn), scales).expand(torch.float32)
    expected = [
        [
            e4m3(int(codes[row, column])) * float(scales[row // 128, column // 128])
            for column in range(300)
        ]
        for row in range(130)
    ]
    assert_same_bits(found, expected)


def test_every_fp4_byte_under_every_scale() -> None:
    """A row of each scale; sixteen bytes a scale, so sixteen scales hold each byte once."""
    codes = torch.arange(256).to(torch.int8).repeat(256, 1)
    scales = every_byte(torch.float8_e8m0fnu).view(256, 1).repeat(1, 16)
    found = Fp4Matrix(codes, scales).expand(torch.float32)
    pairs = [(e2m1(byte & 15), e2m1(byte >> 4)) for byte in range(256)]
    for row in range(256):
        assert_same_bits(
            found[row][None], [[value * e8m0(row) for pair in pairs for value in pair]]
        )


def test_fp4_scales_belong_to_32_columns() -> None:
    codes = torch.full((2, 32), 0x22, dtype=torch.int8)  # all ones
    scales = torch.tensor([[127, 128], [126, 130]], dtype=torch.uint8)
    found = Fp4Matrix(codes, scales.view(torch.float8_e8m0fnu)).expand(torch.bfloat16)
    assert found.tolist() == [[1.0] * 32 + [2.0] * 32, [0.5] * 32 + [8.0] * 32]


def test_memory_is_the_files() -> None:
    fp8 = Fp8Matrix(
        torch.zeros((256, 128)).to(torch.float8_e4m3fn), torch.ones((2, 1)).to(torch.float8_e8m0fnu)
    )
    fp4 = Fp4Matrix(torch.zeros((4, 32), dtype=torch.int8), torch.ones((4, 2)))
    plain = PlainMatrix(torch.zeros((3, 5), dtype=torch.bfloat16))
    assert (fp8.nbytes, fp4.nbytes, plain.nbytes) == (256 * 128 + 2, 4 * 32 + 4 * 2 * 4, 30)


def nearest(value: float, codes: list[float]) -> float:
    """The nearest, and of two as near the one with an even place."""
    return min(codes, key=lambda code: (abs(code - value), codes.index(code) % 2))


FP8_CODES = [e4m3(byte) for byte in range(127)]
FP4_CODES = list(E2M1.values())
numbers = st.floats(-1e4, 1e4, width=32)


@given(st.lists(numbers, min_size=32, max_size=32))
def test_fp4_rounds_to_the_nearest(values: list[float]) -> None:
    largest = max(abs(value) for value in values)
    scale = 2.0 ** math.ceil(math.log2(max(largest / 6, 2.0**-126)))
    expected = [
        math.copysign(nearest(abs(value) / scale, FP4_CODES) * scale, value) for value in values
    ]
    found = fp4_round_trip(torch.tensor([values, values]), 32)
    assert found.tolist() == [expected, expected]


@given(st.lists(numbers, min_size=8, max_size=8))
def test_fp8_rounds_to_the_nearest(values: list[float]) -> None:
    largest = max(1e-4, *(abs(value) for value in values))
    # In float32, as the kernel divides.
    scale = 2.0 ** math.ceil(math.log2(float32(float32(largest) / 448)))
    expected = [
        math.copysign(nearest(abs(value) / scale, FP8_CODES) * scale, value) for value in values
    ]
    assert fp8_round_trip(torch.tensor(values), 8).tolist() == expected


def test_blocks_have_scales_of_their_own() -> None:
    x = torch.tensor([[1000.0] + [0.0] * 31 + [0.5] + [0.0] * 31])
    assert fp4_round_trip(x, 32)[0, 32] == 0.5
    assert fp4_round_trip(x, 64)[0, 32] == 0.0


def test_hadamard_by_definition() -> None:
    """Entry i, j is -1 to the number of ones that i and j share; over the root of the size."""
    size = 16
    signs = [[(-1.0) ** (i & j).bit_count() / 4 for j in range(size)] for i in range(size)]
    x = torch.randn((3, 2, size), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(hadamard(x), x @ torch.tensor(signs), atol=1e-6, rtol=0)


@pytest.mark.parametrize("simulate", [True, False])
def test_only_quantised_weights_round_what_enters(simulate: bool) -> None:
    x = torch.tensor([[1.0, 1.01]])
    codes = torch.eye(2).to(torch.float8_e4m3fn)
    quantised = Fp8Matrix(codes, torch.ones((1, 1)))
    assert Linear(quantised, simulate)(x).equal(torch.tensor([[1.0, 1.0]]) if simulate else x)
    assert Linear(PlainMatrix(torch.eye(2)), simulate)(x).equal(x)
