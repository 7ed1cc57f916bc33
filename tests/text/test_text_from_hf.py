from __future__ import annotations

import json
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from vocabularies import CONTROL, TYPED, byte_level, document, llama_like, unigram

from ds4trio.errors import LoadError
from ds4trio.text.from_hf import HfTokenizer

if TYPE_CHECKING:
    from pathlib import Path

BYTE_LEVEL, LLAMA_2, LLAMA_NOW, UNIGRAM = "byte-level", "llama-2", "llama-now", "unigram"
KINDS = [BYTE_LEVEL, LLAMA_2, LLAMA_NOW, UNIGRAM]
#: Phi-3's way: what follows the token loses its whitespace.
GREEDY = AddedToken("<|user|>", rstrip=True, special=True)


@cache
def built(kind: str) -> Tokenizer:
    match kind:
        case "byte-level":
            return byte_level([GREEDY])
        case "unigram":
            return unigram()
        case _:
            return llama_like(prepend=kind == LLAMA_2)


@cache
def ours(kind: str) -> HfTokenizer:
    return HfTokenizer(document(built(kind)))


@cache
def theirs(kind: str) -> PreTrainedTokenizerFast:
    fast: Any = PreTrainedTokenizerFast  # its constructor has no types
    made: PreTrainedTokenizerFast = fast(tokenizer_object=built(kind))
    return made


def decoded(tokenizer: HfTokenizer, ids: list[int]) -> str:
    decoder = tokenizer.new_decoder()
    return decoder.feed(ids) + decoder.finish()


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
@given(text=TYPED)
def test_text_with_control_is_encoded_as_transformers_does(kind: str, text: str) -> None:
    expected = theirs(kind).encode(text, add_special_tokens=False)
    assert ours(kind).encode_with_control(text) == expected


PARTS = st.lists(
    st.one_of(st.sampled_from([*CONTROL, "<|user|>"]), st.text("ab \n☕", min_size=1)), max_size=8
)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
@given(parts=PARTS)
def test_parts_are_encoded_as_transformers_does_the_whole(kind: str, parts: list[str]) -> None:
    control = ours(kind).control_tokens
    expected = theirs(kind).encode("".join(parts), add_special_tokens=False)
    assert ours(kind).encode_parts([control.get(part, part) for part in parts]) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(text=TYPED)
def test_typed_text_never_becomes_a_control_token(kind: str, text: str) -> None:
    tokenizer = ours(kind)
    control_ids = set(tokenizer.control_tokens.values())
    if kind == UNIGRAM:  # it has no bytes to fall back to
        control_ids.remove(tokenizer.control_tokens["<unk>"])
    assert not control_ids & set(tokenizer.encode(text))
    assert not control_ids & set(tokenizer.encode_parts(["a", text]))


@given(text=st.one_of(TYPED, st.text()))
def test_byte_level_text_survives(text: str) -> None:
    assert decoded(ours(BYTE_LEVEL), ours(BYTE_LEVEL).encode(text)) == text


@pytest.mark.parametrize("kind", [LLAMA_2, LLAMA_NOW])
@given(text=TYPED.filter(lambda text: "▁" not in text))
def test_byte_fallback_text_survives(kind: str, text: str) -> None:
    tokenizer = ours(kind)
    # Metaspace puts no space before a text that begins with one, and takes one away all the same.
    begins_with_space = kind == LLAMA_NOW and text.startswith(" ")
    assert decoded(tokenizer, tokenizer.encode(text)) == text[begins_with_space:]


@pytest.mark.oracle
@pytest.mark.parametrize("kind", [BYTE_LEVEL, LLAMA_2, LLAMA_NOW])
@given(data=st.data())
def test_any_ids_are_decoded_as_transformers_does(kind: str, data: st.DataObject) -> None:
    tokenizer = ours(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    ids = [index for index in ids if index not in tokenizer.control_tokens.values()]
    expected = theirs(kind).decode(ids)
    text = decoded(tokenizer, ids)
    # Its byte fallback replaces each byte of a broken run.
    if kind == BYTE_LEVEL or "\ufffd" not in expected:
        assert text == expected


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_ids_give_the_same_text_one_by_one(kind: str, data: st.DataObject) -> None:
    tokenizer = ours(kind)
    ids = data.draw(st.lists(st.integers(-2, tokenizer.vocab_size + 2), max_size=12))
    decoder = tokenizer.new_decoder()
    text = "".join([decoder.feed([index]) for index in ids]) + decoder.finish()
    assert text == decoded(tokenizer, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_add_no_text(kind: str) -> None:
    tokenizer = ours(kind)
    assert {tokenizer.token_bytes(index) for index in tokenizer.control_tokens.values()} == {b""}
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_within_a_text_a_first_space_is_kept() -> None:
    tokenizer = ours(LLAMA_2)
    ids = tokenizer.encode("the cat")
    assert tokenizer.new_decoder(start_of_text=False).feed(ids) == " the cat"


def test_whitespace_that_was_added_is_text() -> None:
    tokenizer = ours(BYTE_LEVEL)
    spaces = built(BYTE_LEVEL).token_to_id("  ")
    assert "  " not in tokenizer.control_tokens
    assert spaces in tokenizer.encode("a  b")
    assert tokenizer.token_bytes(spaces) == b"  "


def test_added_words_that_are_not_special_are_control_tokens_too() -> None:
    tokenizer = ours(BYTE_LEVEL)
    assert tokenizer.control_tokens["<think>"] == built(BYTE_LEVEL).token_to_id("<think>")


def test_size_counts_added_tokens() -> None:
    assert ours(BYTE_LEVEL).vocab_size == built(BYTE_LEVEL).get_vocab_size()


def with_reachable_control(*, ignore_merges: bool) -> Tokenizer:
    """A vocabulary in which plain text spells the control token ``<s>``, or ``whole``."""
    pieces = ["<s>", "<", "s", ">", "s>", "whole", *"whole"]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("s", ">"), ("<", "s>")]
    model = models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "whole"])
    return tokenizer


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("text", ["<s>", "whole"])
def test_merges_and_whole_words_do_not_make_control_tokens(text: str, ignore_merges: bool) -> None:
    tokenizer = HfTokenizer(document(with_reachable_control(ignore_merges=ignore_merges)))
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.control_tokens.values())
    assert decoded(tokenizer, ids) == text
    assert tokenizer.encode_with_control(text) == [tokenizer.control_tokens[text]]


@pytest.mark.oracle
@pytest.mark.parametrize("config", [{}, {"bos_token": "<s>", "add_bos_token": True}])
@pytest.mark.parametrize("single", [None, "<|start|> $A </s>", "$A </s>", "<s> <|start|> $A"])
def test_bos_is_what_transformers_puts_first(
    config: dict[str, object], single: str | None, tmp_path: Path
) -> None:
    tokenizer = byte_level()
    if single is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single,
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in CONTROL],
        )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    expected = PreTrainedTokenizerFast.from_pretrained(tmp_path)("a").input_ids
    bos_ids = HfTokenizer.from_file(tmp_path / "tokenizer.json").bos_ids
    assert list(bos_ids) == expected[: expected.index(tokenizer.token_to_id("a"))]


def test_other_decoders_are_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LoadError, match=r"tokenizer\.json: decoder: .*WordPiece.*not supported"):
        HfTokenizer.from_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model": {"type": "BPE"}}'])
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(LoadError, match=r"tokenizer\.json: ") as caught:
        HfTokenizer.from_file(tmp_path / "tokenizer.json")
    assert "\n" not in caught.value.message


@pytest.mark.model
@pytest.mark.oracle
def test_the_default_model_encodes_as_transformers_does(default_model: Path) -> None:
    tokenizer = HfTokenizer.from_file(default_model / "tokenizer.json")
    oracle = PreTrainedTokenizerFast.from_pretrained(default_model)
    text = "Explain 1234 hash tables.\n\n  def f(x): return '☕'  # naïve <|im_end|>\t你好"
    assert tokenizer.encode_with_control(text) == oracle.encode(text, add_special_tokens=False)
    plain = tokenizer.encode(text)
    assert decoded(tokenizer, plain) == text
    assert tokenizer.control_tokens["<|im_end|>"] not in plain
    assert tokenizer.bos_ids == ()


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    begun, ran = threading.Event(), threading.Event()

    def other() -> None:
        begun.wait()
        ran.set()

    tokenizer = ours(BYTE_LEVEL)
    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # this thread keeps the GIL, unless it lets go itself
    try:
        begun.set()
        tokenizer.encode("a" * 200_000)
        ran_meanwhile = ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert ran_meanwhile
