"""Tiny random DeepSeek V4 checkpoints: transformers' spellings, and the release's format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 97
CONTEXT = 320
SLIDING = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"

#: Without CUDA, a test marked gpu says why it did not run.
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

_TINY: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "moe_intermediate_size": 24,
    "num_attention_heads": 4,
    "head_dim": 24,
    "partial_rotary_factor": 8 / 24,
    "q_lora_rank": 20,
    "o_groups": 2,
    "o_lora_rank": 12,
    "sliding_window": 8,
    "num_experts_per_tok": 2,
    "n_routed_experts": 6,
    # Rectified scores tie exactly where all heads are negative: not with so many heads.
    "index_n_heads": 32,
    "index_head_dim": 16,
    "index_topk": 5,
    "compress_rates": {SPARSE: 4, HEAVY: 16},
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 5.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
    },
}


def tiny(layers: list[str], hashed: int = 0, **settings: object) -> DeepseekV4Config:
    kinds = ["hash_moe"] * hashed + ["moe"] * (len(layers) - hashed)
    values = {
        **_TINY,
        "num_hidden_layers": len(layers),
        "layer_types": layers,
        "mlp_layer_types": kinds,
        **settings,
    }
    return DeepseekV4Config.from_dict(values)


def variants() -> dict[str, DeepseekV4Config]:
    """Each kind of layer alone, and mixtures."""
    return {
        "sliding": tiny([SLIDING, SLIDING]),
        "sparse": tiny([SPARSE, SPARSE]),
        "sparse-few-heads": tiny([SPARSE, SPARSE], index_n_heads=2, index_topk=100),
        "sparse-by-2": tiny([SPARSE], compress_rates={SPARSE: 2, HEAVY: 16}),
        "heavy": tiny([HEAVY, HEAVY]),
        "hashed": tiny([SLIDING, SLIDING], hashed=2),
        "sigmoid": tiny([SLIDING, HEAVY], scoring_func="sigmoid"),
        "mixed": tiny([SLIDING, SPARSE, HEAVY, SPARSE, SLIDING], hashed=2),
        "three-streams": tiny([SPARSE, HEAVY], hc_mult=3, hc_sinkhorn_iters=5, swiglu_limit=0.5),
    }


def make_checkpoint(
    config: DeepseekV4Config, folder: Path, *, native: bool = True, shard: str = "1GB"
) -> None:
    """Every parameter random, biases, sinks and tables too, saved by transformers."""
    generator = torch.Generator().manual_seed(20)
    model = DeepseekV4ForCausalLM(config)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("tid2eid"):
                shape = (config.vocab_size, config.n_routed_experts)
                scores = torch.rand(shape, generator=generator)
                tensor.copy_(scores.topk(config.num_experts_per_tok).indices)
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            matrix = tensor.dim() > 1 and "position_bias" not in name
            wide = tensor.shape[-1] ** -0.5 if matrix else 0.3
            tensor.copy_(1 + 0.3 * noise if "norm" in name else wide * noise)
    model.save_pretrained(folder, max_shard_size=shard, save_original_format=not native)


#: A model of the release's make. (transformers reads blocks of other than 128 rows wrongly where
#: 128 does not divide: so it divides here, and test_v4_matrix has the rest.)
RELEASE: dict[str, object] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 128,
    "sliding_window": 16,
    "compress_ratios": [0, 4, 128, 4, 0],
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 80,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": CONTEXT,
    "index_n_heads": 32,
    "index_head_dim": 64,
    "index_topk": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "num_hash_layers": 2,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "num_nextn_predict_layers": 1,
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}


#: As far as the released configurations differ from the small one.
FLASH: dict[str, object] = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "num_hash_layers": 3,
    "max_position_embeddings": 1048576,
}
PRO: dict[str, object] = FLASH | {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
    "index_topk": 1024,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
}


class Release:
    """Random tensors in the release's names, shapes and types.

    Written out from the facts about the release, independently of the layout that is tested.
    """

    def __init__(self, *, base: bool = False) -> None:
        #: The release's ``-Base``: experts in FP8, and every scale in F32.
        self._base = base
        self._generator = torch.Generator().manual_seed(5)
        self.tensors: dict[str, torch.Tensor] = {}
        for name in ("embed", "head"):
            self._plain(f"{name}.weight", VOCABULARY, 128)
        self._norm("norm.weight", 128)
        self._streams("hc_head", 4, 1)
        for index, ratio in enumerate((0, 4, 128, 4)):
            self._layer(f"layers.{index}.", ratio, hashed=index < 2)
        self._layer("mtp.0.", 0, hashed=False)
        for name in ("e_proj", "h_proj"):
            self._fp8(f"mtp.0.{name}", 128, 128)
        for name in ("enorm", "hnorm", "norm"):
            self._norm(f"mtp.0.{name}.weight", 128)
        self._streams("mtp.0.hc_head", 4, 1)

    def _layer(self, prefix: str, ratio: int, *, hashed: bool) -> None:
        attention = f"{prefix}attn."
        self._fp8(f"{attention}wq_a", 64, 128)
        self._fp8(f"{attention}wq_b", 256, 64)
        self._fp8(f"{attention}wkv", 64, 128)
        self._fp8(f"{attention}wo_a", 256, 128)
        self._fp8(f"{attention}wo_b", 128, 256)
        self._norm(f"{attention}q_norm.weight", 64)
        self._norm(f"{attention}kv_norm.weight", 64)
        self._f32(f"{attention}attn_sink", 4)
        if ratio:
            self._compressor(f"{attention}compressor.", ratio, 64)
        if ratio == 4:
            self._compressor(f"{attention}indexer.compressor.", ratio, 64)
            self._fp8(f"{attention}indexer.wq_b", 32 * 64, 64)
            self._plain(f"{attention}indexer.weights_proj.weight", 32, 128)
        self._norm(f"{prefix}attn_norm.weight", 128)
        self._norm(f"{prefix}ffn_norm.weight", 128)
        self._experts(f"{prefix}ffn.", hashed=hashed)
        self._streams(f"{prefix}hc_attn", 24, 3)
        self._streams(f"{prefix}hc_ffn", 24, 3)

    def _experts(self, prefix: str, *, hashed: bool) -> None:
        for part, rows, columns in (("w1", 64, 128), ("w2", 128, 64), ("w3", 64, 128)):
            self._fp8(f"{prefix}shared_experts.{part}", rows, columns)
            for expert in range(5):
                routed = self._fp8 if self._base else self._fp4
                routed(f"{prefix}experts.{expert}.{part}", rows, columns)
        self._plain(f"{prefix}gate.weight", 5, 128)
        if hashed:
            scores = torch.rand((VOCABULARY, 5), generator=self._generator)
            self.tensors[f"{prefix}gate.tid2eid"] = scores.topk(2).indices
        else:
            self._f32(f"{prefix}gate.bias", 5)

    def _compressor(self, prefix: str, ratio: int, width: int) -> None:
        features = 2 * width if ratio == 4 else width
        self._plain(f"{prefix}wkv.weight", features, 128)
        self._plain(f"{prefix}wgate.weight", features, 128)
        self._f32(f"{prefix}ape", ratio, features)
        self._norm(f"{prefix}norm.weight", width)

    def _streams(self, prefix: str, rows: int, scales: int) -> None:
        self._f32(f"{prefix}_fn", rows, 512, scale=512**-0.5)
        self._f32(f"{prefix}_base", rows)
        self._f32(f"{prefix}_scale", scales)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)

    def _plain(self, name: str, *shape: int) -> None:
        self.tensors[name] = (self._random(*shape) * shape[-1] ** -0.5).to(torch.bfloat16)

    def _norm(self, name: str, size: int) -> None:
        self.tensors[name] = (1 + 0.3 * self._random(size)).to(torch.bfloat16)

    def _f32(self, name: str, *shape: int, scale: float = 0.3) -> None:
        self.tensors[name] = scale * self._random(*shape)

    def _scale(self, *shape: int, around: float) -> torch.Tensor:
        if self._base:
            return around * (1 + 0.3 * torch.rand(shape, generator=self._generator))
        powers = torch.randint(-1, 2, shape, generator=self._generator)
        exponent = int(torch.tensor(around).log2().round())
        return (powers + exponent).float().exp2().to(torch.float8_e8m0fnu)

    def _fp8(self, name: str, rows: int, columns: int) -> None:
        self.tensors[f"{name}.weight"] = (32 * self._random(rows, columns)).to(torch.float8_e4m3fn)
        blocks = (-(-rows // 128), -(-columns // 128))
        self.tensors[f"{name}.scale"] = self._scale(*blocks, around=columns**-0.5 / 32)

    def _fp4(self, name: str, rows: int, columns: int) -> None:
        shape = (rows, columns // 2)
        codes = torch.randint(-128, 128, shape, generator=self._generator)
        self.tensors[f"{name}.weight"] = codes.to(torch.int8)
        self.tensors[f"{name}.scale"] = self._scale(rows, columns // 32, around=columns**-0.5 / 3)


def write_release(
    folder: Path, tensors: dict[str, torch.Tensor], shards: int = 3, **settings: object
) -> None:
    """A folder with ``config.json``, shards and their index."""
    folder.mkdir(exist_ok=True)
    config = {**RELEASE, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    files: dict[str, dict[str, torch.Tensor]] = {}
    for place, (name, tensor) in enumerate(sorted(tensors.items())):
        file = f"model-{place % shards + 1:05}-of-{shards:05}.safetensors"
        files.setdefault(file, {})[name] = tensor.contiguous()
    for file, content in files.items():
        save_file(content, folder / file)
    weight_map = {name: file for file, content in files.items() for name in content}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def oracle(folder: Path) -> DeepseekV4ForCausalLM:
    """The checkpoint in transformers, in fp32, and nothing missing or left over."""
    loaded: object = DeepseekV4ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert isinstance(loaded, tuple)
    model, told = loaded
    assert not told["missing_keys"]
    assert not told["mismatched_keys"]
    assert isinstance(model, DeepseekV4ForCausalLM)
    model.train(mode=False)
    return model


def oracle_logits(model: DeepseekV4ForCausalLM, token_ids: list[int]) -> torch.Tensor:
    """Shapes: returns (tokens, vocabulary)."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
    return ids
