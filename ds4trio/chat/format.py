"""How one model family writes a conversation, and reads its own answer back.

Pure: no I/O, no trio, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.events import (
        TextDelta,
        ThinkingDelta,
        ToolArgumentsDelta,
        ToolCallEnded,
        ToolCallStarted,
    )
    from ds4trio.request import GenerationRequest, OutputFormat

    #: What a parser makes of model text.
    ParsedEvent = TextDelta | ThinkingDelta | ToolCallStarted | ToolArgumentsDelta | ToolCallEnded


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model continues. ``text`` is for logs on request and for tests, never re-encoded.

    ``thinking``: the model's answer begins within its thoughts (the template has opened them).
    ``stable_prefixes``: after how many tokens later prompts are likely to part from this one.
    """

    text: str
    token_ids: list[int]
    thinking: bool = False
    stable_prefixes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation in the model's format. ``parts``: its plain text and its control tokens' ids,
    in order; see `Prompt` for the others."""

    text: str
    parts: list[str | int]
    thinking: bool = False


class OutputParser(Protocol):
    """Model text of one answer to events. Any chunking of the text gives the same events, up to
    how deltas are cut."""

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the answer."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the answer is whole although the model may go on: a stop string came, or the one
        tool call that was allowed. From then on ``feed`` returns nothing."""
        ...

    @property
    def in_thinking(self) -> bool:
        """Whether the text fed so far ends within the model's thoughts."""
        ...

    @property
    def called_tools(self) -> bool:
        """Whether a tool call was begun."""
        ...

    def feed(self, text: str) -> Sequence[ParsedEvent]:
        """Events for more text."""
        ...

    def finish(self, text_end: str = "") -> Sequence[ParsedEvent]:
        """The last text, and what was held back of it: broken tool markup becomes text."""
        ...


class ChatFormat(Protocol):
    """Runs on: any thread; calls may run side by side."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens with which the model ends its turn."""
        ...

    @property
    def visible_tokens(self) -> frozenset[str]:
        """Control tokens that are markup of an answer, for the parser to read: the decoder's (and a
        grammar's) text has their spelling. Perhaps not all are in the vocabulary."""
        ...

    @property
    def thinking_end(self) -> str | None:
        """What ends the model's thoughts, as the parser reads it; None if it has none. In most
        vocabularies it is a control token."""
        ...

    def render(self, request: GenerationRequest) -> Prompt:
        """The request's conversation, with its tools and thinking, as the model was trained to see
        it, up to where the assistant speaks.

        Raises: RequestError if the model's format cannot express it.
        """
        ...

    def output_format(self, request: GenerationRequest) -> OutputFormat | None:
        """What the answer's text must look like: the request's output format, or the model's own
        markup for a forced tool call. With thinking, it holds for what comes after the thoughts.

        Raises: RequestError if the model cannot be held to it.
        """
        ...

    def new_parser(self, request: GenerationRequest, prompt: Prompt) -> OutputParser:
        """A parser for one answer to what ``render`` gave."""
        ...


@runtime_checkable
class WritesParts(Protocol):
    """What a `ChatFormat` has besides, if turns can be said again in the tokens of then."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens with which the model ends its turn."""
        ...

    def write(self, request: GenerationRequest) -> Written:
        """As ``render``, without its tokens. A conversation that ends with the assistant's turn
        can be written too."""
        ...

    def prompt(self, written: Written, token_ids: list[int]) -> Prompt:
        """What was written, in these tokens."""
        ...


class StructuralTokens(Protocol):
    """Tells which tokens of one answer are markup. See `ds4trio.engine.job.GreedySpans`."""

    @property
    def is_greedy(self) -> bool: ...

    def append(self, token_id: int) -> None: ...


@runtime_checkable
class KnowsStructure(Protocol):
    """What a `ChatFormat` has besides, if its markup is to be sampled greedily."""

    def new_structural_tokens(
        self, request: GenerationRequest, prompt: Prompt
    ) -> StructuralTokens | None:
        """For one answer; None if it can't have any markup. Runs on: any thread."""
        ...
