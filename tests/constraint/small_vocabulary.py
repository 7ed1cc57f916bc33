"""A real byte-level BPE, small, and a model of noise that speaks it."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ds4trio.testing import ScriptedModel
from ds4trio.text.from_hf import HfTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

CORPUS = [
    '{"name": "Ann", "age": 42, "tags": ["red", "blue"], "ok": true, "more": null}',
    '[{"x": 1.5, "y": -2}, {"x": 10, "y": 3e8}, {"city": "Paris", "days": 2024}]',
    "the quick brown fox jumps over the lazy dog; naïve café, ça va?",
] * 20
END, THINK_END, CALL = "<|end|>", "</think>", "<tool_call>"


@cache
def small_tokenizer() -> HfTokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in (END, THINK_END, CALL)])
    return HfTokenizer(json.loads(tokenizer.to_str()))


def text_of(token_ids: list[int]) -> str:
    return b"".join(map(small_tokenizer().token_bytes, token_ids)).decode()


def id_of(spelling: str) -> int:
    return small_tokenizer().control_tokens[spelling]


def noisy_model(seed: int = 0, *, wider: int = 7) -> ScriptedModel:
    """Logits depend on the tokens so far; there are ``wider`` more than the tokenizer has ids."""
    width = small_tokenizer().vocab_size + wider

    def noise(token_ids: Sequence[int]) -> torch.Tensor:
        place = hash((seed, *token_ids)) % 2**63
        return torch.randn(width, generator=torch.Generator().manual_seed(place)) * 2

    return ScriptedModel(logits=noise, vocab_size=width, context_tokens=8192)
