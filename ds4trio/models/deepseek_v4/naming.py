"""How checkpoints spell the release's tensor names.

Three spellings are in use: the release's; transformers' own; and what transformers writes by
default, which is the release's within a layer and a mixture outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_NATIVE_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "head.weight": "lm_head.weight",
    "norm.weight": "model.norm.weight",
    "hc_head_fn": "model.hc_head.hc_fn",
    "hc_head_base": "model.hc_head.hc_base",
    "hc_head_scale": "model.hc_head.hc_scale",
}
_INDEXER = "self_attn.compressor.indexer."
_NATIVE_LAYER = {
    "attn.attn_sink": "self_attn.sinks",
    "attn.wq_a.weight": "self_attn.q_a_proj.weight",
    "attn.q_norm.weight": "self_attn.q_a_norm.weight",
    "attn.wq_b.weight": "self_attn.q_b_proj.weight",
    "attn.wkv.weight": "self_attn.kv_proj.weight",
    "attn.kv_norm.weight": "self_attn.kv_norm.weight",
    "attn.wo_a.weight": "self_attn.o_a_proj.weight",
    "attn.wo_b.weight": "self_attn.o_b_proj.weight",
    "attn.compressor.ape": "self_attn.compressor.position_bias",
    "attn.compressor.norm.weight": "self_attn.compressor.kv_norm.weight",
    "attn.compressor.wgate.weight": "self_attn.compressor.gate_proj.weight",
    "attn.compressor.wkv.weight": "self_attn.compressor.kv_proj.weight",
    "attn.indexer.compressor.ape": f"{_INDEXER}position_bias",
    "attn.indexer.compressor.norm.weight": f"{_INDEXER}kv_norm.weight",
    "attn.indexer.compressor.wgate.weight": f"{_INDEXER}gate_proj.weight",
    "attn.indexer.compressor.wkv.weight": f"{_INDEXER}kv_proj.weight",
    "attn.indexer.wq_b.weight": f"{_INDEXER}q_b_proj.weight",
    "attn.indexer.weights_proj.weight": f"{_INDEXER}scorer.weights_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate.weight": "mlp.gate.weight",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.gate.tid2eid": "mlp.gate.tid2eid",
    "ffn.shared_experts.w1.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn.shared_experts.w2.weight": "mlp.shared_experts.down_proj.weight",
    "ffn.shared_experts.w3.weight": "mlp.shared_experts.up_proj.weight",
    **{
        f"hc_{block}_{part}": f"{block}_hc.{part}"
        for block in ("attn", "ffn")
        for part in ("fn", "base", "scale")
    },
}
#: An expert's projections in a stacked checkpoint: all experts' of one kind in one tensor.
STACKED_GATE_UP = "mlp.experts.gate_up_proj"
STACKED_DOWN = "mlp.experts.down_proj"


@dataclass(frozen=True, slots=True)
class Spelling:
    """From the release's names to a checkpoint's; a name not listed is spelt the same."""

    top: Mapping[str, str]
    layer: Mapping[str, str]
    layer_prefix: str
    #: Whether each layer's experts are stacked in two tensors.
    stacked: bool

    def of_top(self, name: str) -> str:
        return self.top.get(name, name)

    def of_layer(self, index: int, name: str) -> str:
        return f"{self.layer_prefix}{index}.{self.layer.get(name, name)}"


def spelling(names: Collection[str]) -> Spelling:
    """The one in which a checkpoint with these tensors is written."""
    if "model.layers.0.input_layernorm.weight" in names:
        return Spelling(_NATIVE_TOP, _NATIVE_LAYER, "model.layers.", stacked=True)
    if "model.layers.0.attn_norm.weight" in names:
        top = _NATIVE_TOP | {"head.weight": "head.weight"}
        layer = {"attn.kv_norm.weight": "attn.norm.weight"}
        return Spelling(top, layer, "model.layers.", stacked=False)
    return Spelling({}, {}, "layers.", stacked=False)


def holds_mtp(names: Collection[str]) -> bool:
    """Whether a checkpoint with these tensors has one layer of token prediction.

    (Later releases of Flash keep a drafter of another make under the same prefix.)
    """
    ours = {"mtp.0.e_proj.weight", "mtp.0.hc_head_fn"} <= set(names)
    return ours and not any(name.startswith("mtp.1.") for name in names)
