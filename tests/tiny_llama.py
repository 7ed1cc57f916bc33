"""A Llama so small that it starts at once: random weights and a byte-level vocabulary, as files.

Written with numpy and tokenizers alone, so that a test which only needs *some* model does not wait
for transformers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 32, 4, 2, 8, 48, 2
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_llama(folder: Path, *, chat: bool = True, context_tokens: int = 100_000) -> Path:
    """A model folder; without ``chat`` it is a base model's. Two calls write the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    _write_tokenizer(folder, letters, chat=chat)
    vocab_size = len(letters) + len(CONTROL_TOKENS)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": len(letters) + 1,
        "eos_token_id": len(letters) + 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(vocab_size), folder / "model.safetensors")
    return folder


def _write_tokenizer(folder: Path, letters: list[str], *, chat: bool) -> None:
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    if chat:
        config["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _weights(vocab_size: int) -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab_size, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in (
                ("input_layernorm", (HIDDEN,)),
                ("post_attention_layernorm", (HIDDEN,)),
                ("self_attn.q_proj", (HEADS * HEAD_DIM, HIDDEN)),
                ("self_attn.k_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
                ("self_attn.v_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
                ("self_attn.o_proj", (HIDDEN, HEADS * HEAD_DIM)),
                ("mlp.gate_proj", (FFN, HIDDEN)),
                ("mlp.up_proj", (FFN, HIDDEN)),
                ("mlp.down_proj", (HIDDEN, FFN)),
            )
        }
    random = np.random.default_rng(seed=0)
    return {
        name: random.normal(scale=0.3, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
