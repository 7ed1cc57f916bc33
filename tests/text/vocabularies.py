"""Small vocabularies of each kind, made on the spot."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import sentencepiece
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

CORPUS = [
    "the cat sat on the mat and the dog said hello to the world",
    "how does a hash table work? it maps keys to values, in O(1) time.",
    "an end is the start of an im_end and an im_start; 12 + 345 = 357",
    "héllo wörld, ça va? naïve café in 2024",
] * 20

CONTROL = ["<|end|>", "<|start|>", "<s>", "</s>"]
#: Text around and about control tokens.
TYPED = st.lists(
    st.one_of(
        st.sampled_from([*CONTROL, "<|end", "|>", "<", "s>", "</", " ", "  ", "\n", "the cat"]),
        st.text(max_size=8),
    ),
    max_size=8,
).map("".join)


def byte_level(added: Iterable[AddedToken] = ()) -> Tokenizer:
    """A byte-level BPE as GPT-2's, with control tokens and one of two spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("  ", normalized=False), AddedToken("<think>"), *added])
    return tokenizer


def llama_like(*, prepend: bool) -> Tokenizer:
    """A BPE over ``▁`` with byte fallback: as Llama 2's (``prepend``), or as transformers now
    writes it, with Metaspace."""
    pieces, merges = _trained_pieces()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = dict.fromkeys(["<unk>", *CONTROL, *fallback, *pieces])
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    if prepend:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in ["<unk>", *CONTROL]]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """A Unigram model with its control tokens among its pieces."""
    pieces, _ = _trained_pieces()
    alphabet = [chr(code) for code in range(0x21, 0x7F)]
    tokens = dict.fromkeys(["<unk>", *CONTROL, "▁", *alphabet, *pieces])
    vocab = [
        (token, 0.0 if token in CONTROL else -float(rank)) for rank, token in enumerate(tokens)
    ]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in ["<unk>", *CONTROL]]
    )
    return tokenizer


def document(tokenizer: Tokenizer) -> dict[str, Any]:
    """The ``tokenizer.json``."""
    loaded: dict[str, Any] = json.loads(tokenizer.to_str())
    return loaded


def sentencepiece_model(kind: str = "bpe", **options: Any) -> bytes:
    """A ``tokenizer.model``, trained by SentencePiece itself, as Llama's unless told otherwise."""
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": kind,
        "vocab_size": 400,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, **(settings | options)
    )
    return model.getvalue()


def _trained_pieces() -> tuple[list[str], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = document(tokenizer)["model"]
    return list(model["vocab"]), [(left, right) for left, right in model["merges"]]
