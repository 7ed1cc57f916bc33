"""Which tokens of an answer are the markup of tool calls.

Source: ds4-server samples them greedily whatever the temperature, so that a model that is to be
creative still writes calls that can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.chat.deepseek_v4_parser import DsmlParser

if TYPE_CHECKING:
    from ds4trio.chat.thinking import ThinkingSplitter
    from ds4trio.text.tokenizer import StreamDecoder


class StructureTracker:
    """Follows one answer, apart from its parser: it may run on another thread.

    Thoughts are never structure, calls in them neither. A call is, from its block's first tag on,
    but for the values: all of a text, the strings in JSON. An end tag is structure once it is sure
    to be one, in whatever tokens it comes. Every block of an answer counts.
    """

    def __init__(self, thinking: ThinkingSplitter | None, *, in_block: bool) -> None:
        """``thinking`` for an answer that begins in thoughts; ``in_block``: the prompt has begun
        the calls."""
        self._thinking = thinking
        self._calls = DsmlParser((), str, in_block=in_block)

    @property
    def is_structural(self) -> bool:
        """Whether the next token is structure."""
        return self._calls.in_structure

    def feed(self, text: str) -> None:
        """More of the answer, as a parser sees it."""
        if self._thinking is None:
            self._calls.feed(text)
            return
        for piece in self._thinking.feed(text):
            if not piece.is_thought:
                self._calls.feed(piece.text)


class StructuralTokens:
    """The same by tokens: an engine's greedy spans."""

    def __init__(self, tracker: StructureTracker, decoder: StreamDecoder) -> None:
        """``decoder`` is one of its own, which shows what is markup."""
        self._tracker = tracker
        self._decoder = decoder

    @property
    def is_greedy(self) -> bool:
        """Whether the next token is structure."""
        return self._tracker.is_structural

    def append(self, token_id: int) -> None:
        """The answer has one more token."""
        self._tracker.feed(self._decoder.feed([token_id]))
