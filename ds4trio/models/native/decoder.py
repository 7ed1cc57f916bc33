"""What the library offers, in Python's types.

The structures are those of ``decoder.cpp``, field by field.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ds4trio.models.native.pages import LargePages

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Weights of a row that share a scale.
BLOCK = 32
#: Rows that lie interleaved.
ROWS = 8
HEAD_DIMS = (32, 64, 96, 128)


def packed_bytes(rows: int, cols: int, bits: int) -> int:
    """Of a quantised matrix: codes, and half precision scales (and offsets, with 4 bits)."""
    block = (16 + 2 * 2) if bits == 4 else (32 + 2)
    return -(-rows // ROWS) * ROWS * (cols // BLOCK) * block


class CMatrix(ctypes.Structure):
    _fields_ = (
        ("blocks", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("rows", ctypes.c_int32),
        ("cols", ctypes.c_int32),
        ("bits", ctypes.c_int32),
    )


class CLayer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("qk_norm", ctypes.c_void_p),
        ("qkv", CMatrix),
        ("output", CMatrix),
        ("gate_up", CMatrix),
        ("down", CMatrix),
    )


class CDecoder(ctypes.Structure):
    _fields_ = (
        ("hidden", ctypes.c_int32),
        ("inner", ctypes.c_int32),
        ("query_heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("layers", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("rope_scale", ctypes.c_float),
        ("frequencies", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("embedding", CMatrix),
        ("head", CMatrix),
        ("layer", ctypes.POINTER(CLayer)),
    )


class CSpan(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("past", ctypes.c_int32),
        ("logit_rows", ctypes.c_int32),
        ("kv", ctypes.c_void_p),
        ("layer_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised matrix. Shapes: blocks (bytes,), bias (rows,)."""

    blocks: torch.Tensor
    rows: int
    cols: int
    bits: int
    bias: torch.Tensor | None = None

    def as_struct(self) -> CMatrix:
        """For as long as this object lives."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return CMatrix(self.blocks.data_ptr(), bias, self.rows, self.cols, self.bits)


class Native:
    """The library's functions, and the memory of what it packs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._pages = LargePages()
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        self._pack = library.pack
        self._pack.argtypes = [pointer, integer, integer, integer, pointer, ctypes.c_float, integer]
        self._pack.restype = ctypes.c_float
        self._expand = library.expand
        self._expand.argtypes = [ctypes.POINTER(CMatrix), pointer]
        self._expand.restype = None
        self._trim_memory = library.trim_memory
        self._trim_memory.argtypes = []
        self._trim_memory.restype = None
        self._workspace_bytes = library.workspace_bytes
        self._workspace_bytes.argtypes = [ctypes.POINTER(CDecoder), integer, integer]
        self._workspace_bytes.restype = ctypes.c_int64
        self._forward = library.forward
        self._forward.argtypes = [
            ctypes.POINTER(CDecoder),
            pointer,
            integer,
            pointer,
            integer,
            pointer,
            pointer,
            integer,
        ]
        self._forward.restype = None

    def pack(
        self, weight: torch.Tensor, bits: int, limit: float = math.inf
    ) -> tuple[Packed, float]:
        """A matrix in ``bits`` (4 or 8), and the largest error of a weight.

        An error is a share of the largest of the 32 weights beside it. If it is over ``limit``, the
        matrix is of no use. Shapes: weight (rows, cols) float32, cols a multiple of 32.
        """
        weight = weight.contiguous()
        rows, cols = weight.shape
        blocks = self._pages.take(packed_bytes(rows, cols, bits))
        threads = torch.get_num_threads()
        error = self._pack(weight.data_ptr(), rows, cols, bits, blocks.data_ptr(), limit, threads)
        if error > limit:
            self._pages.give_back(blocks)
        return Packed(blocks, rows, cols, bits), error

    def expand(self, packed: Packed) -> torch.Tensor:
        """What a matrix has become. Shapes: returns (rows, cols) float32."""
        weight = torch.empty(packed.rows, packed.cols)
        self._expand(packed.as_struct(), weight.data_ptr())
        return weight

    def trim_memory(self) -> None:
        """Give what was freed while loading back to the system."""
        self._trim_memory()

    def workspace_bytes(self, decoder: CDecoder, tokens: int) -> int:
        return int(self._workspace_bytes(decoder, tokens, torch.get_num_threads()))

    def forward(
        self,
        decoder: CDecoder,
        token_ids: Sequence[int],
        spans: Sequence[CSpan],
        logits: torch.Tensor,
        workspace: torch.Tensor,
    ) -> None:
        """Lets go of the GIL. Shapes: logits (rows asked for, vocabulary) float32."""
        ids = (ctypes.c_int32 * len(token_ids))(*token_ids)
        all_spans = (CSpan * len(spans))(*spans)
        self._forward(
            decoder,
            ids,
            len(token_ids),
            all_spans,
            len(spans),
            logits.data_ptr(),
            workspace.data_ptr(),
            torch.get_num_threads(),
        )
