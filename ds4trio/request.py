"""What is asked of a model, in no protocol's words.

Knows nothing of HTTP, JSON, tokens of a particular model, or torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen.

    Units: ``temperature`` 0 means greedy; ``top_k`` 0 means all tokens; ``top_p`` 1 and ``min_p`` 0
    switch those filters off. ``seed`` makes a sequence reproducible whatever runs beside it; None
    draws a fresh one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. ``content`` is plain text: never control tokens."""

    role: Role
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to be rendered by the model's chat format, answered by the assistant."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text, continued as it stands: no chat format."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, continued as they stand."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation.

    ``max_tokens`` None means: as far as the context allows; more than fits is cut to what fits.
    ``stop`` strings end the text before them. ``ignore_eos`` goes on past the model's own end.
    """

    prompt: Conversation | TextPrompt | TokenPrompt
    model: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
