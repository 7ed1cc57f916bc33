"""Tokenizers from a ``tokenizer.json``, through Hugging Face's ``tokenizers`` package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import tokenizers

from ds4trio.errors import LoadError
from ds4trio.text.control import visible_bytes
from ds4trio.text.decoder import Utf8StreamDecoder
from ds4trio.text.json_file import read_json_object
from ds4trio.text.pieces import (
    SPACE_MARK,
    byte_level_alphabet,
    byte_level_bytes,
    sentencepiece_bytes,
)
from ds4trio.text.respell import respell, secret_spellings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path


class HfTokenizer:
    """A `ds4trio.text.tokenizer.Tokenizer` over a ``tokenizer.json``.

    The unknown token still stands for characters that the vocabulary lacks, where the model has no
    byte fallback; its spelling does not produce it.
    """

    def __init__(self, document: Mapping[str, object]) -> None:
        """``document`` is the ``tokenizer.json``. Raises: LoadError naming the setting."""
        self._hf = _build(document)
        added = self._hf.get_added_tokens_decoder()
        self.control_tokens = {
            token.content: token_id
            for token_id, token in added.items()
            if not token.content.isspace()
        }
        self._secret = secret_spellings(self.control_tokens.values())
        names = {name: self._secret[index] for name, index in self.control_tokens.items()}
        self._plain = _build(respell(document, names))
        vocab = self._hf.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        coding = _coding(document.get("decoder"))
        self._drop_space = coding.drop_space
        self._bytes = _token_bytes(vocab, self.control_tokens, coding)
        self._bytes |= {
            index: token.content.encode()
            for index, token in added.items()
            if token.content.isspace()
        }
        self.bos_ids = _bos_ids(self._hf)

    @classmethod
    def from_file(cls, path: Path) -> HfTokenizer:
        """Reads a ``tokenizer.json``. Raises: LoadError naming the file."""
        document = read_json_object(path)
        try:
            return cls(document)
        except LoadError as error:
            raise LoadError(f"{path}: {error.message}") from None

    def encode(self, text: str) -> list[int]:
        return _ids(self._plain, text)

    def encode_with_control(self, text: str) -> list[int]:
        return _ids(self._hf, text)

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        secret = self._secret
        text = "".join([part if isinstance(part, str) else secret[part] for part in parts])
        return _ids(self._plain, text)

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(token_id, b"")

    def new_decoder(
        self, *, start_of_text: bool = True, visible: Collection[str] = ()
    ) -> Utf8StreamDecoder:
        return Utf8StreamDecoder(
            self._bytes,
            drop_space=self._drop_space and start_of_text,
            visible=visible_bytes(self.control_tokens, visible),
        )


def _ids(hf: tokenizers.Tokenizer, text: str) -> list[int]:
    # encode() holds the GIL, which for a long text stops the whole process; encode_batch() lets go.
    return hf.encode_batch([text], add_special_tokens=False)[0].ids


@dataclass(frozen=True, slots=True)
class _Coding:
    """How pieces spell bytes, and whether the first space of a text is the tokenizer's own."""

    byte_level: bool
    byte_fallback: bool = False
    drop_space: bool = False


def _build(document: Mapping[str, object]) -> tokenizers.Tokenizer:
    try:
        hf = tokenizers.Tokenizer.from_str(msgspec.json.encode(document).decode())
    except Exception as error:  # the package raises bare Exception
        raise LoadError(f"not a usable tokenizer: {error}") from None
    hf.no_truncation()
    hf.no_padding()
    return hf


def _token_bytes(
    vocab: Mapping[str, int], control_tokens: Mapping[str, int], coding: _Coding
) -> dict[int, bytes]:
    control_ids = set(control_tokens.values())
    text = {piece: index for piece, index in vocab.items() if index not in control_ids}
    if coding.byte_level:
        alphabet = byte_level_alphabet()
        return {index: byte_level_bytes(piece, alphabet) for piece, index in text.items()}
    return {
        index: sentencepiece_bytes(piece, byte_fallback=coding.byte_fallback)
        for piece, index in text.items()
    }


def _coding(decoder: object) -> _Coding:
    match decoder:
        case {"type": "ByteLevel"}:
            return _Coding(byte_level=True)
        case {"type": "Metaspace", "replacement": "▁", **options}:
            return _Coding(byte_level=False, drop_space=_adds_space(options))
        case {"type": "Sequence", "decoders": list(steps)}:
            if [step["type"] for step in steps] == ["ByteLevel"]:
                return _Coding(byte_level=True)
            return _sequence_coding(steps)
    raise LoadError(f"decoder: {msgspec.json.encode(decoder).decode()} is not supported")


def _sequence_coding(steps: list[object]) -> _Coding:
    """SentencePiece in Hugging Face's words: a chain of small steps."""
    space_mark = byte_fallback = drop_space = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
                space_mark = True
            case {"type": "Metaspace", "replacement": "▁", **options}:
                space_mark, drop_space = True, drop_space or _adds_space(options)
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                drop_space = drop_space or start == 1
            case _:
                text = msgspec.json.encode(step).decode()
                raise LoadError(f"decoder: {text} is not supported")
    if not space_mark:
        raise LoadError(f"decoder: nothing turns {SPACE_MARK} into a space: not supported")
    return _Coding(byte_level=False, byte_fallback=byte_fallback, drop_space=drop_space)


def _adds_space(metaspace: Mapping[object, object]) -> bool:
    # Older files say add_prefix_space, newer ones prepend_scheme.
    scheme = metaspace.get("prepend_scheme")
    return scheme != "never" if scheme else metaspace.get("add_prefix_space") is not False


def _bos_ids(hf: tokenizers.Tokenizer) -> tuple[int, ...]:
    """What ``tokenizer(text)`` of transformers puts before a text.

    Only the post-processor decides; ``add_bos_token`` in ``tokenizer_config.json`` is for models
    without a ``tokenizer.json``. Any text shows what it does.
    """
    encoding = hf.encode("a")
    mask = encoding.special_tokens_mask
    text_starts = mask.index(0) if 0 in mask else len(mask)
    return tuple(encoding.ids[:text_starts])
