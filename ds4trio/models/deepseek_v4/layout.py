"""Which tensors a checkpoint of the release holds: names, shapes and how they are stored.

Source: headers of the release's shards as reported, and its ``convert.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ds4trio.models.deepseek_v4.config import FP8_BLOCK
from ds4trio.models.deepseek_v4.matrix import FP4_BLOCK

if TYPE_CHECKING:
    from ds4trio.models.deepseek_v4.config import Compression, DeepseekV4Config

#: How the release stores a tensor; fp8 and fp4 have a second tensor of scales.
Form = Literal["fp8", "fp4", "bf16", "f32", "i64"]


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of the model, whose ``shape`` is that of its numbers, packed or not."""

    form: Form
    shape: tuple[int, ...]

    @property
    def tensors(self) -> int:
        return 2 if self.form in ("fp8", "fp4") else 1

    @property
    def parameters(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """In the release's files, scales too."""
        match self.form:
            case "fp8":
                rows, columns = (-(-size // FP8_BLOCK) for size in self.shape)
                return self.parameters + rows * columns
            case "fp4":
                return self.parameters // 2 + self.parameters // FP4_BLOCK
            case "bf16":
                return 2 * self.parameters
            case "f32":
                return 4 * self.parameters
            case "i64":
                return 8 * self.parameters


def top_tensors(config: DeepseekV4Config) -> dict[str, Stored]:
    """Outside the layers."""
    table = (config.vocab_size, config.hidden_size)
    return {
        "embed.weight": Stored("bf16", table),
        "head.weight": Stored("bf16", table),
        "norm.weight": Stored("bf16", (config.hidden_size,)),
        **_streams_head(config),
    }


def layer_tensors(
    config: DeepseekV4Config, compression: Compression | None, hash_routed: bool
) -> dict[str, Stored]:
    """Of one layer, without its routed experts."""
    hidden, rank, head_dim = config.hidden_size, config.query_rank, config.head_dim
    output = config.output_groups * config.output_rank
    a_group = config.heads * head_dim // config.output_groups
    tensors = {
        "attn.attn_sink": Stored("f32", (config.heads,)),
        "attn.wq_a.weight": Stored("fp8", (rank, hidden)),
        "attn.q_norm.weight": Stored("bf16", (rank,)),
        "attn.wq_b.weight": Stored("fp8", (config.heads * head_dim, rank)),
        "attn.wkv.weight": Stored("fp8", (head_dim, hidden)),
        "attn.kv_norm.weight": Stored("bf16", (head_dim,)),
        "attn.wo_a.weight": Stored("fp8", (output, a_group)),
        "attn.wo_b.weight": Stored("fp8", (hidden, output)),
        "attn_norm.weight": Stored("bf16", (hidden,)),
        "ffn_norm.weight": Stored("bf16", (hidden,)),
        "ffn.gate.weight": Stored("bf16", (config.experts, hidden)),
    }
    tensors |= {
        f"ffn.shared_experts.{name}": Stored("fp8", stored.shape)
        for name, stored in expert_tensors(config).items()
    }
    if hash_routed:
        table = (config.vocab_size, config.experts_per_token)
        tensors["ffn.gate.tid2eid"] = Stored("i64", table)
    else:
        tensors["ffn.gate.bias"] = Stored("f32", (config.experts,))
    weights = config.streams * (2 + config.streams)
    for block in ("attn", "ffn"):
        tensors[f"hc_{block}_fn"] = Stored("f32", (weights, config.streams * hidden))
        tensors[f"hc_{block}_base"] = Stored("f32", (weights,))
        tensors[f"hc_{block}_scale"] = Stored("f32", (3,))
    if compression is not None:
        tensors |= _compressor(config, "attn.compressor.", compression, head_dim)
    if compression is not None and compression.sparse:
        index_dim = config.index_head_dim
        tensors |= _compressor(config, "attn.indexer.compressor.", compression, index_dim)
        tensors["attn.indexer.wq_b.weight"] = Stored("fp8", (config.index_heads * index_dim, rank))
        tensors["attn.indexer.weights_proj.weight"] = Stored("bf16", (config.index_heads, hidden))
    return tensors


def expert_tensors(config: DeepseekV4Config) -> dict[str, Stored]:
    """Of one routed expert: gate, down, up."""
    hidden, size = config.hidden_size, config.expert_size
    return {
        "w1.weight": Stored("fp4", (size, hidden)),
        "w2.weight": Stored("fp4", (hidden, size)),
        "w3.weight": Stored("fp4", (size, hidden)),
    }


def mtp_tensors(config: DeepseekV4Config) -> dict[str, Stored]:
    """Of one layer of token prediction, without its routed experts."""
    hidden = config.hidden_size
    return {
        "enorm.weight": Stored("bf16", (hidden,)),
        "hnorm.weight": Stored("bf16", (hidden,)),
        "norm.weight": Stored("bf16", (hidden,)),
        "e_proj.weight": Stored("fp8", (hidden, hidden)),
        "h_proj.weight": Stored("fp8", (hidden, hidden)),
        **_streams_head(config),
        **layer_tensors(config, None, hash_routed=False),
    }


def _streams_head(config: DeepseekV4Config) -> dict[str, Stored]:
    return {
        "hc_head_fn": Stored("f32", (config.streams, config.streams * config.hidden_size)),
        "hc_head_base": Stored("f32", (config.streams,)),
        "hc_head_scale": Stored("f32", (1,)),
    }


def _compressor(
    config: DeepseekV4Config, prefix: str, compression: Compression, width: int
) -> dict[str, Stored]:
    features = (2 if compression.sparse else 1) * width
    return {
        f"{prefix}ape": Stored("f32", (compression.ratio, features)),
        f"{prefix}norm.weight": Stored("bf16", (width,)),
        f"{prefix}wgate.weight": Stored("bf16", (features, config.hidden_size)),
        f"{prefix}wkv.weight": Stored("bf16", (features, config.hidden_size)),
    }
