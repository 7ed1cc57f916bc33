"""A model's tokenizer, from whichever files it comes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ds4trio.errors import LoadError
from ds4trio.text.from_gguf import hf_tokenizer_from_gguf
from ds4trio.text.from_hf import HfTokenizer
from ds4trio.text.from_sentencepiece import SentencePieceTokenizer
from ds4trio.text.gguf_metadata import read_gguf_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.text.tokenizer import Tokenizer


def load_tokenizer(source: Path) -> Tokenizer:
    """The tokenizer in a model folder (``tokenizer.json``, else ``tokenizer.model``) or GGUF file.

    Raises: LoadError naming the file.
    """
    if source.is_file():
        return _from_gguf(source)
    if (source / "tokenizer.json").exists():
        return HfTokenizer.from_file(source / "tokenizer.json")
    if (source / "tokenizer.model").exists():
        return SentencePieceTokenizer.from_folder(source)
    raise LoadError(f"{source}: neither tokenizer.json nor tokenizer.model is there")


def _from_gguf(path: Path) -> HfTokenizer:
    metadata = read_gguf_metadata(path)
    try:
        return HfTokenizer(msgspec.json.decode(hf_tokenizer_from_gguf(metadata).to_str()))
    except LoadError as error:
        raise LoadError(f"{path}: {error.message}") from None
