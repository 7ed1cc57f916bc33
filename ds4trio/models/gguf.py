"""A ``.gguf`` file of the Llama family, seen as a Hugging Face checkpoint.

Reads with the ``gguf`` package; knows nothing of torch. Runs on: any thread.
Source: the GGUF specification (ggml ``docs/gguf.md``) and llama.cpp's ``convert_hf_to_gguf.py``,
whose renamings and row permutation are undone here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGUFReader, ReaderField, ReaderTensor, dequantize

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import numpy.typing as npt

_MAGIC = b"GGUF"
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP_LEVEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
#: Factors by which llama.cpp divides the rotary frequencies (Llama 3's scaling, precomputed).
_ROPE_FACTORS = "rope_freqs.weight"
#: Settings that change the numbers and that the families here do not have, with harmless values.
_FOREIGN_SETTINGS: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "attention.sliding_window": (0,),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.causal": (True,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
}


class GgufFile:
    """One GGUF model file, memory-mapped.

    Raises: LoadError naming the file and the tensor or setting, at once for whatever is wrong with
    the file as a whole, and from ``tensor`` for a quantisation that cannot be read.
    """

    #: All metadata as plain Python values, ``tokenizer.*`` included.
    metadata: Mapping[str, object]
    #: The model's settings in the form of Hugging Face's ``config.json``.
    config: dict[str, object]

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _open(path)
        self.metadata = {
            name: self._contents(name, field)
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")
        }
        if reader.byte_order == "S":
            raise LoadError(f"{path}: big-endian GGUF files are not supported")
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise self._error("split.count", "a file in several parts is not supported")
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in _CLASSES:
            raise self._error(
                "general.architecture",
                f"{architecture!r} is not supported (only {', '.join(_CLASSES)})",
            )
        self._architecture = architecture
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        factors = tensors.pop(_ROPE_FACTORS, None)
        self._tensors = {self._hf_name(name): tensor for name, tensor in tensors.items()}
        self.config = self._read_config(factors)

    def _contents(self, name: str, field: ReaderField) -> object:
        try:
            return field.contents()
        except ValueError as error:  # a damaged file: text that is not UTF-8, a type unheard of
            raise self._error(name, str(error)) from None

    @property
    def names(self) -> Collection[str]:
        """The tensors' Hugging Face names, such as ``model.layers.0.self_attn.q_proj.weight``."""
        return self._tensors.keys()

    def tensor(self, hf_name: str) -> npt.NDArray[np.float32]:
        """One tensor of one's own, dequantised, in Hugging Face's layout.

        Shapes: (out features, in features), or (features,).
        """
        tensor = self._tensors[hf_name]
        values = self._dequantized(tensor)
        if self._architecture != "llama" or not re.search(r"\.[qk]_proj\.", hf_name):
            return values
        heads = self._integer("attention.head_count") if ".q_proj." in hf_name else self._kv_heads()
        if len(values) % (2 * heads):
            raise self._error(tensor.name, f"{len(values)} rows do not divide into {heads} heads")
        return _unpermute(values, heads)

    def shape(self, hf_name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return tuple(reversed(self._tensors[hf_name].shape.tolist()))

    def gguf_name(self, hf_name: str) -> str:
        """What the file itself calls a tensor, for error messages."""
        return str(self._tensors[hf_name].name)

    def _error(self, what: str, problem: str) -> LoadError:
        return LoadError(f"{self.path}: {what}: {problem}")

    def _hf_name(self, name: str) -> str:
        if top := _TOP_LEVEL_NAMES.get(name):
            return top
        match = _BLOCK_TENSOR.fullmatch(name)
        if match and match[2] in _BLOCK_NAMES:
            return f"model.layers.{match[1]}.{_BLOCK_NAMES[match[2]]}.{match[3]}"
        raise self._error(name, f"no such tensor is known in a {self._architecture} model")

    def _dequantized(self, tensor: ReaderTensor) -> npt.NDArray[np.float32]:
        kind = tensor.tensor_type
        try:
            values = dequantize(tensor.data, kind)
        except NotImplementedError:
            problem = f"quantisation {kind.name} is not supported"
            raise self._error(tensor.name, problem) from None
        # Plain float32 comes as a view of the file.
        return np.require(values, dtype=np.float32, requirements="W")

    # -- settings --------------------------------------------------------------------------------

    def _get(self, name: str) -> object:
        return self.metadata.get(f"{self._architecture}.{name}")

    def _integer(self, name: str, default: int | None = None) -> int:
        value = self._get(name)
        if value is None:
            value = default
        if type(value) is not int or value < 1:
            problem = "missing" if value is None else f"{value!r} is not a whole number above 0"
            raise self._error(f"{self._architecture}.{name}", problem)
        return value

    def _number(self, name: str, default: float | None = None) -> float:
        value = self._get(name)
        if value is None:
            value = default
        if type(value) not in (int, float):
            problem = "missing" if value is None else f"{value!r} is not a number"
            raise self._error(f"{self._architecture}.{name}", problem)
        assert isinstance(value, int | float)
        return value

    def _kv_heads(self) -> int:
        return self._integer("attention.head_count_kv", self._integer("attention.head_count"))

    def _head_dim(self) -> int:
        hidden, heads = self._integer("embedding_length"), self._integer("attention.head_count")
        head_dim = self._integer("attention.key_length", max(1, hidden // heads))
        for name in ("attention.value_length", "rope.dimension_count"):
            if self._integer(name, head_dim) != head_dim:
                problem = f"{self._get(name)} differs from the size of a head, {head_dim}"
                raise self._error(f"{self._architecture}.{name}", f"{problem}: not supported")
        return head_dim

    def _read_config(self, rope_factors: ReaderTensor | None) -> dict[str, object]:
        for name, harmless in _FOREIGN_SETTINGS.items():
            value = self._get(name)
            if value is not None and value not in harmless:
                raise self._error(f"{self._architecture}.{name}", f"{value!r} is not supported")
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise self._error("token_embd.weight", "missing")
        config: dict[str, object] = {
            "architectures": [_CLASSES[self._architecture]],
            "model_type": self._architecture,
            "hidden_act": "silu",
            "vocab_size": int(embedding.shape[-1]),
            "hidden_size": self._integer("embedding_length"),
            "intermediate_size": self._integer("feed_forward_length"),
            "num_hidden_layers": self._integer("block_count"),
            "num_attention_heads": self._integer("attention.head_count"),
            "num_key_value_heads": self._kv_heads(),
            "head_dim": self._head_dim(),
            "max_position_embeddings": self._integer("context_length"),
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._tensors,
            "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in self._tensors,
            "rope_parameters": self._read_rope(rope_factors),
        }
        for name in ("bos_token_id", "eos_token_id"):
            if (token_id := self.metadata.get(f"tokenizer.ggml.{name}")) is not None:
                config[name] = token_id
        return config

    def _read_rope(self, factors: ReaderTensor | None) -> dict[str, object]:
        theta = self._number("rope.freq_base", 10000.0)
        scaling = self._read_rope_scaling()
        if factors is None:
            return {"rope_theta": theta, **scaling}
        if scaling["rope_type"] != "default":
            raise self._error(_ROPE_FACTORS, f"not with {scaling['rope_type']!r} rope scaling")
        # Of Hugging Face's kinds, longrope takes a factor a frequency. Its two sets are for short
        # and long sequences; here they are the same.
        values = self._dequantized(factors).tolist()
        return {
            "rope_theta": theta,
            "rope_type": "longrope",
            "short_factor": values,
            "long_factor": values,
            "attention_factor": 1.0,
            "original_max_position_embeddings": self._integer("context_length"),
        }

    def _read_rope_scaling(self) -> dict[str, object]:
        prefix = f"{self._architecture}.rope.scaling."
        given = {n.removeprefix(prefix) for n in self.metadata if n.startswith(prefix)}
        for name in sorted(given - {"type", "factor", "original_context_length", "finetuned"}):
            value = self.metadata[prefix + name]
            raise self._error(prefix + name, f"{value!r} is not supported")
        # A factor alone means linear scaling to llama.cpp.
        kind = self._get("rope.scaling.type") or ("linear" if "factor" in given else "none")
        match kind:
            case "none":
                return {"rope_type": "default"}
            case "linear":
                return {"rope_type": "linear", "factor": self._number("rope.scaling.factor")}
            case "yarn":
                return {
                    "rope_type": "yarn",
                    "factor": self._number("rope.scaling.factor"),
                    "original_max_position_embeddings": self._integer(
                        "rope.scaling.original_context_length", self._integer("context_length")
                    ),
                }
            case _:
                raise self._error(f"{prefix}type", f"{kind!r} is not supported")


def _open(path: Path) -> GGUFReader:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise LoadError(f"{path}: not a GGUF file")
        return GGUFReader(path)
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        # What the reader's array operations raise where the file ends early or holds nonsense.
        detail = str(error).splitlines()[0]
        raise LoadError(f"{path}: truncated or damaged GGUF file: {detail}") from None


def _unpermute(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head from llama.cpp's order (pairs side by side) back to halves."""
    # (heads * D, ...) -> (heads, D/2, 2, ...) -> (heads, 2, D/2, ...) -> (heads * D, ...)
    shape = values.shape
    return values.reshape(heads, -1, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
