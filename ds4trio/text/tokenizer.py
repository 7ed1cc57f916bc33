"""Text to token ids and back. Knows nothing of messages or models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Tokenizer(Protocol):
    """One model's vocabulary. Runs on: any thread; calls may run side by side.

    A *control token* is an added token that steers the model (``<|im_end|>``, BOS, ``<think>``);
    it has no text of its own.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        ...

    @property
    def control_tokens(self) -> dict[str, int]:
        """Spelling of each control token and its id."""
        ...

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """What the model expects before a raw prompt (usually BOS, or nothing)."""
        ...

    def encode(self, text: str) -> list[int]:
        """Plain text: control tokens are never produced, whatever is typed. No BOS."""
        ...

    def encode_with_control(self, text: str) -> list[int]:
        """Text written by a template: control tokens' spellings become control tokens. No BOS."""
        ...

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        """Plain text and ids of control tokens, in order.

        As `encode_with_control` of the same text, but only the given control tokens are ones.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes (perhaps part of a character) that a token adds to the text.

        Control tokens and ids beyond the vocabulary add nothing.
        """
        ...

    def new_decoder(
        self, *, start_of_text: bool = True, visible: Collection[str] = ()
    ) -> StreamDecoder:
        """A decoder for one answer.

        ``visible`` are control tokens that are the answer's markup (``<tool_call>``): for those who
        read it their spelling is text. Those that the vocabulary lacks are no matter.

        ``start_of_text`` False: the answer goes on within a text, so a first space belongs to it
        even where the tokenizer begins every text with one (SentencePiece).
        """
        ...


class StreamDecoder(Protocol):
    """Token ids of one answer to text, piece by piece.

    The pieces joined are the same text however the ids are grouped; no piece ends within a
    character.
    """

    def feed(self, token_ids: list[int]) -> str:
        """The whole characters these ids complete; may be empty."""
        ...

    def finish(self) -> str:
        """What is left: bytes that never became a character, as U+FFFD."""
        ...
