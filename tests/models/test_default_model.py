"""The real SmolLM2 weights against transformers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from checkpoints import oracle, oracle_logits
from tokenizers import Tokenizer

from ds4trio.models.base import CausalLM, Chunk
from ds4trio.models.registry import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

pytestmark = [pytest.mark.oracle, pytest.mark.model]
QUESTION = "<|im_start|>user\nExplain what a hash table is.<|im_end|>\n<|im_start|>assistant\n"
#: What transformers 5.24 itself answers when it reads the GGUF file.
ANSWER = (
    "A hash table is a data structure used in computer science to store and retrieve data in a way "
    "that is efficient and fast."
)
TOLERANCE = 1e-4
# Logits reach 38, where a float32's last bit is 4e-6. A prompt cut after its first token came to
# 9.8e-5 on one CPU; another sums in another order.
TOLERANCE_IN_PIECES = 2e-4


@pytest.fixture(scope="module")
def ours(default_model: Path) -> CausalLM:
    return load_model(default_model, dtype="fp32", device="cpu")


@pytest.fixture(scope="module")
def theirs(default_model: Path) -> PreTrainedModel:
    return oracle(default_model)


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_model / "tokenizer.json"))


@pytest.fixture(scope="module")
def question(tokenizer: Tokenizer) -> list[int]:
    return list(tokenizer.encode(QUESTION, add_special_tokens=False).ids)


@pytest.mark.parametrize("cuts", [[], [1], [9], [3, 14]])
def test_logits(
    ours: CausalLM, theirs: PreTrainedModel, question: list[int], cuts: list[int]
) -> None:
    state = ours.new_state()
    rows = [
        ours.forward([Chunk(state, question[a:b], b - a)])
        for a, b in pairwise([0, *cuts, len(question)])
    ]
    tolerance = TOLERANCE_IN_PIECES if cuts else TOLERANCE
    torch.testing.assert_close(
        torch.cat(rows), oracle_logits(theirs, question), atol=tolerance, rtol=0
    )


def test_greedy_answer(ours: CausalLM, tokenizer: Tokenizer, question: list[int]) -> None:
    state, answer = ours.new_state(), list(question)
    pending = question
    for _ in range(25):
        token_id = int(ours.forward([Chunk(state, pending)]).argmax())
        pending = [token_id]
        answer.append(token_id)
    assert tokenizer.decode(answer[len(question) :]).startswith(ANSWER)
