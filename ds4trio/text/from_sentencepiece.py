"""Tokenizers from a ``tokenizer.model``, through the ``sentencepiece`` package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sentencepiece

from ds4trio.errors import LoadError
from ds4trio.text.control import ControlSplitter, visible_bytes
from ds4trio.text.decoder import Utf8StreamDecoder
from ds4trio.text.json_file import read_json_object, token_spelling
from ds4trio.text.pieces import SPACE_MARK, sentencepiece_bytes
from ds4trio.text.sentencepiece_proto import PieceType, read_pieces, with_piece_types

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path


class SentencePieceTokenizer:
    """A `ds4trio.text.tokenizer.Tokenizer` over a SentencePiece model.

    Control tokens are the model's control, unknown and user-defined pieces, the last ones unless
    they are whitespace, and what ``tokenizer_config.json`` adds. The unknown token still stands for
    characters that the vocabulary lacks, where the model has no byte fallback.
    """

    def __init__(self, model: bytes, config: Mapping[str, object]) -> None:
        """``model`` is the ``tokenizer.model``, ``config`` the ``tokenizer_config.json``.

        Raises: LoadError.
        """
        pieces = read_pieces(model)
        user_defined = {
            piece
            for piece in pieces
            if piece.type is PieceType.USER_DEFINED and not _is_space(piece.text)
        }
        # SentencePiece itself never makes control pieces of text, but does so with user-defined
        # ones.
        plain = with_piece_types(model, user_defined, PieceType.CONTROL)
        self._processor = _load(plain)
        steering = (PieceType.CONTROL, PieceType.UNKNOWN)
        self.control_tokens = {
            piece.text: index
            for index, piece in enumerate(pieces)
            if piece.type in steering or piece in user_defined
        }
        self.control_tokens |= dict(_added_tokens(config))
        self._splitter = ControlSplitter(self.control_tokens)
        control_ids = set(self.control_tokens.values())
        self.vocab_size = max(len(pieces), max(control_ids, default=-1) + 1)
        self._bytes = {
            index: sentencepiece_bytes(piece.text, byte_fallback=piece.type is PieceType.BYTE)
            for index, piece in enumerate(pieces)
            if index not in control_ids
        }
        # A space that is spelled as a byte is never the tokenizer's own.
        self._byte_spaces = {
            index
            for index, piece in enumerate(pieces)
            if piece.type is PieceType.BYTE and self._bytes[index] == b" "
        }
        self._drop_space = self._begins_texts_with_space()
        self.bos_ids = self._read_bos(config)

    @classmethod
    def from_folder(cls, folder: Path) -> SentencePieceTokenizer:
        """Reads ``tokenizer.model`` and ``tokenizer_config.json``. Raises: LoadError."""
        path = folder / "tokenizer.model"
        config = read_json_object(folder / "tokenizer_config.json")
        try:
            return cls(path.read_bytes(), config)
        except OSError as error:
            raise LoadError(f"{path}: {error.strerror}") from None
        except LoadError as error:
            raise LoadError(f"{path}: {error.message}") from None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text)
        return ids

    def encode_with_control(self, text: str) -> list[int]:
        return self.encode_parts(self._splitter.split(text))

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                ids += self.encode(part)
            else:
                ids.append(part)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(token_id, b"")

    def new_decoder(
        self, *, start_of_text: bool = True, visible: Collection[str] = ()
    ) -> Utf8StreamDecoder:
        return Utf8StreamDecoder(
            self._bytes,
            drop_space=self._drop_space and start_of_text,
            kept_spaces=self._byte_spaces,
            visible=visible_bytes(self.control_tokens, visible),
        )

    def _begins_texts_with_space(self) -> bool:
        """Whether decoding drops a first space: the model knows, and does not say."""
        for index, data in self._bytes.items():
            if data.startswith(b" ") and index not in self._byte_spaces:
                return len(self._processor.decode([index])) < len(data.decode())
        return False

    def _read_bos(self, config: Mapping[str, object]) -> tuple[int, ...]:
        if not config.get("add_bos_token", True):
            return ()
        spelling = token_spelling(config.get("bos_token"))
        if spelling is None:
            bos_id = self._processor.bos_id()
            return (bos_id,) if bos_id >= 0 else ()
        if spelling not in self.control_tokens:
            raise LoadError(f"bos_token: {spelling!r} is not in the vocabulary")
        return (self.control_tokens[spelling],)


def _load(model: bytes) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        raise LoadError(f"not a SentencePiece model: {error}") from None


def _is_space(piece: str) -> bool:
    return piece.replace(SPACE_MARK, " ").isspace()


def _added_tokens(config: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    added = config.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return
    for token_id, token in added.items():
        spelling = token_spelling(token)
        if spelling is None or not token_id.isdecimal():
            raise LoadError(f"added_tokens_decoder: {token_id}: not a token")
        if not _is_space(spelling):
            yield spelling, int(token_id)
