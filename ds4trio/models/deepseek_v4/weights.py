"""A checkpoint's tensors in whatever storage they have, checked against the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ds4trio.errors import LoadError
from ds4trio.models.deepseek_v4.config import FP8_BLOCK
from ds4trio.models.deepseek_v4.layout import expert_tensors
from ds4trio.models.deepseek_v4.matrix import (
    FP4_BLOCK,
    Fp4Matrix,
    Fp8Matrix,
    Linear,
    Matrix,
    PlainMatrix,
)
from ds4trio.models.deepseek_v4.moe import Expert
from ds4trio.models.deepseek_v4.naming import STACKED_DOWN, STACKED_GATE_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ds4trio.models.deepseek_v4.config import DeepseekV4Config
    from ds4trio.models.deepseek_v4.layout import Stored
    from ds4trio.models.weights import Weights

_FLOATS = ("BF16", "F32", "F16")
_FP8 = "F8_E4M3"
_FP4 = "I8"
_SCALES = ("F8_E8M0", "F32")


class Group:
    """The tensors of one layer, or of none, by their names in the release.

    Raises: LoadError from every method, naming a tensor that is missing, misshapen or of a type
    it cannot have.
    """

    def __init__(
        self,
        weights: Weights,
        tensors: Mapping[str, Stored],
        name: Callable[[str], str],
        simulate: bool,
    ) -> None:
        self._weights = weights
        self._tensors = tensors
        self._name = name
        self._simulate = simulate

    def has(self, name: str) -> bool:
        """Whether the model has such a tensor here."""
        return name in self._tensors

    def vector(self, name: str) -> torch.Tensor:
        """In float32, on the device."""
        return self._stored(name, _FLOATS).to(self._weights.device, torch.float32, copy=True)

    def table(self, name: str) -> torch.Tensor:
        """In the type it is stored in, on the device."""
        return self._stored(name, _FLOATS).to(self._weights.device)

    def expert_table(self, name: str) -> torch.Tensor:
        """Numbers of experts, each checked to be there, on the device."""
        experts = len(self._stored("ffn.gate.weight", _FLOATS))
        table = self._stored(name, ("I64", "I32")).to(torch.int64)
        if int(table.min()) < 0 or int(table.max()) >= experts:
            raise LoadError(f"{self._weights.where(self._name(name))}: names an expert not there")
        return table.to(self._weights.device)

    def matrix(self, name: str) -> Matrix:
        """On the device."""
        rows, columns = self._tensors[name].shape
        return read_matrix(self._weights, self._name(name), rows, columns).to(self._weights.device)

    def linear(self, name: str) -> Linear:
        return Linear(self.matrix(name), self._simulate)

    def _stored(self, name: str, kinds: tuple[str, ...]) -> torch.Tensor:
        return self._weights.take_stored(self._name(name), kinds, *self._tensors[name].shape)


def read_matrix(weights: Weights, name: str, rows: int, columns: int) -> Matrix:
    """A matrix in any storage, where it lies: on the CPU and perhaps memory-mapped."""
    kind = weights.kind(name) if name in weights.names else ""
    if kind == _FP8:
        codes = weights.take_stored(name, (_FP8,), rows, columns)
        blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        return Fp8Matrix(codes, _scales(weights, name, *blocks))
    if kind == _FP4 and columns % FP4_BLOCK == 0:
        codes = weights.take_stored(name, (_FP4,), rows, columns // 2)
        return Fp4Matrix(codes, _scales(weights, name, rows, columns // FP4_BLOCK))
    return PlainMatrix(weights.take_stored(name, (*_FLOATS, _FP8, _FP4), rows, columns))


def read_experts(
    config: DeepseekV4Config,
    weights: Weights,
    name: Callable[[str], str],
    simulate: bool,
    stacked: bool,
) -> list[Expert]:
    """A layer's routed experts, where they lie."""

    def expert(gate: Matrix, down: Matrix, up: Matrix) -> Expert:
        gate_, down_, up_ = (Linear(matrix, simulate) for matrix in (gate, down, up))
        return Expert(gate_, up_, down_, config.swiglu_limit)

    if stacked:
        size, hidden, count = config.expert_size, config.hidden_size, config.experts
        gate_up = weights.take_stored(name(STACKED_GATE_UP), _FLOATS, count, 2 * size, hidden)
        down = weights.take_stored(name(STACKED_DOWN), _FLOATS, count, hidden, size)
        return [
            expert(PlainMatrix(both[:size]), PlainMatrix(one), PlainMatrix(both[size:]))
            for both, one in zip(gate_up, down, strict=True)
        ]
    return [
        expert(
            *(
                read_matrix(weights, name(f"ffn.experts.{number}.{part}"), *stored.shape)
                for part, stored in expert_tensors(config).items()
            )
        )
        for number in range(config.experts)
    ]


def _scales(weights: Weights, name: str, rows: int, columns: int) -> torch.Tensor:
    """The release says ``.scale``; transformers, ``.weight_scale_inv`` for the same factors."""
    theirs = f"{name}_scale_inv"
    ours = f"{name.removesuffix('.weight')}.scale"
    return weights.take_stored(theirs if theirs in weights.names else ours, _SCALES, rows, columns)
