from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from vocabularies import TYPED, byte_level, document, sentencepiece_model

from ds4trio.errors import LoadError
from ds4trio.text.from_gguf import hf_tokenizer_from_gguf, tokenizer_config_from_gguf
from ds4trio.text.from_hf import HfTokenizer
from ds4trio.text.gguf_metadata import read_gguf_metadata
from ds4trio.text.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

Kind = gguf.TokenType


def byte_level_metadata(**changes: object) -> dict[str, object]:
    """What llama.cpp's converter writes for the vocabulary of `byte_level`."""
    tokenizer = byte_level()
    vocab = tokenizer.get_vocab()
    added = tokenizer.get_added_tokens_decoder()
    kinds = [Kind.NORMAL] * len(vocab)
    for index, token in added.items():
        kinds[index] = Kind.CONTROL if token.special else Kind.USER_DEFINED
    merges: list[list[str]] = document(tokenizer)["model"]["merges"]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": sorted(vocab, key=vocab.__getitem__),
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": vocab["<|start|>"],
        "tokenizer.ggml.eos_token_id": vocab["<|end|>"],
    }
    return metadata | {f"tokenizer.{name}": value for name, value in changes.items()}


@cache
def sentencepiece_case() -> tuple[SentencePieceProcessor, dict[str, object]]:
    """A model, and what llama.cpp's converter writes for it."""
    model = sentencepiece_model("bpe", vocab_size=600, user_defined_symbols=["<|end|>"])
    sp = SentencePieceProcessor(model_proto=model)
    ids = range(len(sp))
    kinds = [_kind(sp, index) for index in ids]
    return sp, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [sp.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [sp.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.bos_token_id": sp.bos_id(),
        "tokenizer.ggml.eos_token_id": sp.eos_id(),
        "tokenizer.ggml.unknown_token_id": sp.unk_id(),
    }


def _kind(sp: SentencePieceProcessor, index: int) -> Kind:
    if sp.is_unknown(index):
        return Kind.UNKNOWN
    if sp.is_control(index):
        return Kind.CONTROL
    if sp.is_byte(index):
        return Kind.BYTE
    return Kind.USER_DEFINED if sp.id_to_piece(index) == "<|end|>" else Kind.NORMAL


@cache
def gguf_tokenizer(kind: str) -> Tokenizer:
    metadata = byte_level_metadata() if kind == "gpt2" else sentencepiece_case()[1]
    return hf_tokenizer_from_gguf(metadata)


@cache
def original() -> Tokenizer:
    return byte_level()


@given(text=TYPED)
def test_byte_level_vocabularies_come_back_as_they_were(text: str) -> None:
    ids = gguf_tokenizer("gpt2").encode(text, add_special_tokens=False).ids
    assert ids == original().encode(text, add_special_tokens=False).ids
    assert gguf_tokenizer("gpt2").decode(ids) == original().decode(ids)


@given(text=st.one_of(st.text(), TYPED).filter(lambda text: "<|end|>" not in text))
def test_sentencepiece_vocabularies_encode_as_the_original(text: str) -> None:
    sp, _ = sentencepiece_case()
    tokenizer = HfTokenizer(document(gguf_tokenizer("llama")))
    ids = tokenizer.encode(text)
    assert ids == sp.encode(text)
    decoder = tokenizer.new_decoder()
    assert decoder.feed(ids) + decoder.finish() == sp.decode(ids)


def test_without_a_space_prefix_text_keeps_its_beginning() -> None:
    _, metadata = sentencepiece_case()
    metadata = metadata | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = HfTokenizer(document(hf_tokenizer_from_gguf(metadata)))
    for text in ("the cat", " the cat"):
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
        assert tokenizer.new_decoder().feed(ids) == text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "It's 1234", ["It", "'s", "Ġ1234"]),
        ("smollm", "It's 1234", ["It", "'s", "Ġ", "1", "2", "3", "4"]),
        ("qwen2", "It'S 1234\n\n", ["It", "'S", "Ġ", "1", "2", "3", "4", "ĊĊ"]),
        ("llama-bpe", "It'S 1234\n\n", ["It", "'S", "Ġ", "123", "4", "ĊĊ"]),
        ("tekken", "HelloWorld 12/\n", ["Hello", "World", "Ġ", "1", "2", "/Ċ"]),
    ],
)
def test_text_is_cut_as_each_family_does(pre: str, text: str, words: list[str]) -> None:
    tokenizer = hf_tokenizer_from_gguf(byte_level_metadata(**{"ggml.pre": pre}))
    rule = tokenizer.pre_tokenizer
    assert rule is not None
    assert [word for word, _ in rule.pre_tokenize_str(text)] == words


def test_qwen_composes_characters() -> None:
    tokenizer = hf_tokenizer_from_gguf(byte_level_metadata(**{"ggml.pre": "qwen2"}))
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({}, False),
        ({"ggml.add_bos_token": True}, True),
        ({"ggml.pre": "llama-bpe"}, True),
        ({"ggml.pre": "llama-bpe", "ggml.add_bos_token": False}, False),
    ],
)
def test_bos_is_added_where_the_model_expects_it(changes: dict[str, Any], added: bool) -> None:
    metadata = byte_level_metadata(**changes)
    tokenizer = HfTokenizer(document(hf_tokenizer_from_gguf(metadata)))
    assert tokenizer.bos_ids == ((tokenizer.control_tokens["<|start|>"],) if added else ())
    assert tokenizer_config_from_gguf(metadata)["add_bos_token"] is added


def test_sentencepiece_vocabularies_begin_with_bos() -> None:
    sp, _ = sentencepiece_case()
    assert HfTokenizer(document(gguf_tokenizer("llama"))).bos_ids == (sp.bos_id(),)


def test_the_config_names_special_tokens_and_template() -> None:
    metadata = byte_level_metadata(chat_template="{{ messages }}")
    assert tokenizer_config_from_gguf(metadata) == {
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "add_bos_token": False,
        "chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml.pre": "klingon"}, r"tokenizer\.ggml\.pre: 'klingon' is not supported"),
        ({"ggml.model": "rwkv"}, r"tokenizer\.ggml\.model: 'rwkv' is not supported"),
        ({"ggml.model": None}, r"tokenizer\.ggml\.model: None is not supported"),
        ({"ggml.tokens": None}, r"tokenizer\.ggml\.tokens: missing"),
        ({"ggml.merges": ["ab"]}, r"tokenizer\.ggml\.merges: 'ab'"),
        ({"ggml.merges": ["qqq zzz"]}, r"tokenizer\.ggml\.merges: 'qqq zzz'"),
        ({"ggml.token_type": [1]}, r"tokenizer\.ggml\.token_type: not one for each token"),
        ({"ggml.bos_token_id": 10**6}, r"tokenizer\.ggml\.bos_token_id: 1000000"),
        ({"ggml.model": "llama"}, r"tokenizer\.ggml\.scores: "),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        hf_tokenizer_from_gguf(byte_level_metadata(**changes))


# -- the file ------------------------------------------------------------------------------------


def write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_float32("a.float", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_int64("a.number", -(2**40))
    writer.add_array("a.list", [1, 2, 3])
    for name, value in byte_level_metadata().items():
        match value:
            case list():
                writer.add_array(name, value)
            case int():
                writer.add_uint32(name, value)
            case str():
                writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.oracle
def test_metadata_is_what_the_gguf_package_reads(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    fields = gguf.GGUFReader(path).fields
    expected = {n: f.contents() for n, f in fields.items() if not n.startswith("GGUF.")}
    assert read_gguf_metadata(path) == expected


def test_a_tokenizer_is_loaded_from_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    assert load_tokenizer(path).encode("the cat") == original().encode("the cat").ids


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    for length in [*range(1, 200), *range(200, len(whole), 97)]:
        path.write_bytes(whole[:length])
        with pytest.raises(LoadError, match=r"model\.gguf: "):
            read_gguf_metadata(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(40), "version 1 is not supported"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=message):
        load_tokenizer(path)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(tmp_path)


def test_a_wrong_tokenizer_in_a_gguf_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("rwkv")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"model\.gguf: tokenizer\.ggml\.model: 'rwkv'"):
        load_tokenizer(path)
