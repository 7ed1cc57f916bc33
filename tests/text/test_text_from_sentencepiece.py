from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from vocabularies import TYPED, sentencepiece_model

from ds4trio.errors import LoadError
from ds4trio.text.from_sentencepiece import SentencePieceTokenizer

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ["bpe", "unigram"]
#: Two declared control, two user-defined, as model makers do; and whitespace, which is text.
STEERING = {
    "control_symbols": ["<|start|>"],
    "user_defined_symbols": ["<|end|>", "</think>", "▁▁▁▁"],
}


@cache
def ours(kind: str) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(sentencepiece_model(kind, **STEERING), {})


@cache
def theirs(kind: str) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_proto=sentencepiece_model(kind, **STEERING))


def decoded(tokenizer: SentencePieceTokenizer, ids: list[int]) -> str:
    decoder = tokenizer.new_decoder()
    return decoder.feed(ids) + decoder.finish()


PLAIN = st.text().filter(lambda text: not any(c in text for c in ("</think>", "<|end|>")))


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
@given(text=PLAIN)
def test_text_is_encoded_and_decoded_as_sentencepiece_does(kind: str, text: str) -> None:
    ids = ours(kind).encode(text)
    assert ids == theirs(kind).encode(text)
    assert decoded(ours(kind), ids) == theirs(kind).decode(ids)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_ids_are_decoded_as_sentencepiece_does(kind: str, data: st.DataObject) -> None:
    tokenizer = ours(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    ids = [index for index in ids if index not in tokenizer.control_tokens.values()]
    # SentencePiece has one U+FFFD for each broken byte.
    broken = re.compile("\ufffd+")
    expected = broken.sub("\ufffd", theirs(kind).decode(ids))
    assert broken.sub("\ufffd", decoded(tokenizer, ids)) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(text=TYPED.map(lambda text: f"<|end|{text}</think>"))
def test_typed_text_never_becomes_a_control_token(kind: str, text: str) -> None:
    tokenizer = ours(kind)
    ids = tokenizer.encode(text)
    assert not set(tokenizer.control_tokens.values()) & set(ids)
    assert decoded(tokenizer, ids) == text.replace("▁", " ")


def test_control_and_user_defined_pieces_are_control_tokens() -> None:
    spellings = ours("bpe").control_tokens
    assert set(spellings) == {"<unk>", "<s>", "</s>", "<|start|>", "<|end|>", "</think>"}
    assert all(theirs("bpe").piece_to_id(piece) == index for piece, index in spellings.items())
    assert {ours("bpe").token_bytes(index) for index in spellings.values()} == {b""}


def test_user_defined_whitespace_is_text() -> None:
    spaces = theirs("bpe").piece_to_id("▁▁▁▁")
    assert spaces in ours("bpe").encode("a    b")
    assert ours("bpe").token_bytes(spaces) == b"    "


def test_control_tokens_stand_between_texts() -> None:
    tokenizer, processor = ours("bpe"), theirs("bpe")
    control = tokenizer.control_tokens
    expected = [
        control["<s>"],
        *processor.encode("the cat"),
        control["<|end|>"],
        *processor.encode("\n"),
    ]
    assert tokenizer.encode_with_control("<s>the cat<|end|>\n") == expected
    assert tokenizer.encode_parts([control["<s>"], "the cat", control["<|end|>"], "\n"]) == expected


def test_tokens_added_beside_the_model_count() -> None:
    size = len(theirs("bpe"))
    added = {str(size): {"content": "<|im_end|>"}, str(size + 5): {"content": "<|im_start|>"}}
    model = sentencepiece_model("bpe", **STEERING)
    tokenizer = SentencePieceTokenizer(model, {"added_tokens_decoder": added})
    assert tokenizer.vocab_size == size + 6
    assert tokenizer.encode_with_control("<|im_end|>") == [size]
    assert size not in tokenizer.encode("<|im_end|>")
    assert tokenizer.token_bytes(size) == b""


def test_models_without_a_first_space_keep_the_first_space() -> None:
    model = sentencepiece_model("bpe", add_dummy_prefix=False)
    tokenizer = SentencePieceTokenizer(model, {})
    assert decoded(tokenizer, tokenizer.encode(" the cat")) == " the cat"


def test_a_first_space_that_is_a_byte_is_kept() -> None:
    space = theirs("bpe").piece_to_id("<0x20>")
    assert decoded(ours("bpe"), [space]) == theirs("bpe").decode([space]) == " "


def test_models_with_bytes_and_no_other_early_space_drop_the_first_space() -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_model("bpe"), {})
    assert decoded(tokenizer, tokenizer.encode("the cat")) == "the cat"


def test_markup_is_visible_if_asked_for() -> None:
    tokenizer = ours("bpe")
    ids = [tokenizer.control_tokens[spelling] for spelling in ("<|start|>", "</think>")]
    decoder = tokenizer.new_decoder(visible={"</think>", "<tool_call>"})
    assert decoder.feed(ids) == "</think>"


def test_within_a_text_a_first_space_is_kept() -> None:
    ids = ours("bpe").encode("the cat")
    assert ours("bpe").new_decoder(start_of_text=False).feed(ids) == " the cat"


def test_an_unknown_character_is_the_unknown_token_where_there_are_no_bytes() -> None:
    model = sentencepiece_model("bpe", byte_fallback=False, required_chars="<>")
    tokenizer = SentencePieceTokenizer(model, {})
    assert tokenizer.encode("☕") == SentencePieceProcessor(model_proto=model).encode("☕")
    assert tokenizer.control_tokens["<unk>"] in tokenizer.encode("☕")
    assert tokenizer.control_tokens["<unk>"] not in tokenizer.encode("<unk>")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "<s>"),
        ({"add_bos_token": False}, None),
        ({"add_bos_token": True, "bos_token": "<|start|>"}, "<|start|>"),
        ({"bos_token": {"content": "<s>"}}, "<s>"),
    ],
)
def test_bos_is_added_unless_the_config_says_otherwise(
    config: dict[str, object], expected: str | None
) -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_model("bpe", **STEERING), config)
    ids = () if expected is None else (tokenizer.control_tokens[expected],)
    assert tokenizer.bos_ids == ids


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe")
    for damaged in (
        b"",
        model[:100],
        b"\xff" * 50,
        b"version https://git-lfs.github.com/spec/v1\n",
    ):
        (tmp_path / "tokenizer.model").write_bytes(damaged)
        with pytest.raises(LoadError, match=r"tokenizer\.model: ") as caught:
            SentencePieceTokenizer.from_folder(tmp_path)
        assert "\n" not in caught.value.message


def test_a_config_that_is_wrong_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model("bpe"))
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": "<bos>"}))
    with pytest.raises(LoadError, match=r"bos_token: '<bos>' is not in the vocabulary"):
        SentencePieceTokenizer.from_folder(tmp_path)
    config.write_text(json.dumps({"added_tokens_decoder": {"one": {"content": "x"}}}))
    with pytest.raises(LoadError, match=r"added_tokens_decoder: one"):
        SentencePieceTokenizer.from_folder(tmp_path)
