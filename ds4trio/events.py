"""What a generation says, from prompt to finish, in no protocol's words.

Every event but `PromptProgress` and `UsageSoFar` belongs to one ``choice``: the answer's number,
from 0, where a request asked for several. Within a choice the order is: thinking, text and tool
calls in any order, then `Finished`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took, in tokens.

    ``cached_prompt_tokens`` were reused, not computed; ``thinking_tokens`` are those of
    ``generated_tokens`` that were thought and not said.
    """

    prompt_tokens: int
    generated_tokens: int
    cached_prompt_tokens: int = 0
    thinking_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural-log probability, and the likeliest tokens at its place.

    ``text`` is the token's own (U+FFFD where it is part of a character), ``data`` its bytes.
    ``logprob`` is None for a prompt's first token, which nothing predicts.
    """

    token_id: int
    text: str
    data: bytes
    logprob: float | None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """``done`` of ``total`` prompt tokens are computed. The first, with ``done`` 0, ends the wait
    in the queue."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class UsageSoFar:
    """What all answers have taken up to and with the next event, for those who ask to hear of it.

    How much of the prompt was cached is not known before the end.
    """

    usage: Usage


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More of what the model thinks before it answers: whole characters, never empty."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer: whole characters. ``logprobs``, if asked for, are those of the
    tokens that this event accounts for; only then may ``text`` be empty."""

    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model calls a tool. ``index`` counts an answer's calls from 0."""

    index: int
    id: str
    name: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """More of a call's arguments: a piece of JSON text (or of a custom tool's plain input)."""

    index: int
    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """The call is whole. One that is cut off (by ``length``, say) has no such event."""

    index: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A choice's last event. ``stop_sequence`` is the stop string that ended the text, if one did.

    ``remaining`` choices still run; with 0 this is the generation's last event. ``usage`` counts
    all choices that have finished, the prompt once.
    """

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    choice: int = 0
    remaining: int = 0


GenerationEvent: TypeAlias = (
    PromptProgress
    | UsageSoFar
    | ThinkingDelta
    | TextDelta
    | ToolCallStarted
    | ToolArgumentsDelta
    | ToolCallEnded
    | Finished
)
