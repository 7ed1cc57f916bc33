"""What a generation says, from prompt to finish, in no protocol's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took, in tokens. ``cached_prompt_tokens`` were reused, not computed."""

    prompt_tokens: int
    generated_tokens: int
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """``done`` of ``total`` prompt tokens are computed. The first, with ``done`` 0, ends the wait
    in the queue."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer: whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. ``stop_sequence`` is the stop string that ended the text, if one did."""

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None


GenerationEvent: TypeAlias = PromptProgress | TextDelta | Finished
