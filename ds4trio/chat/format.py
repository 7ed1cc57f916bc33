"""How one model family writes a conversation, and reads its own answer back.

Pure: no I/O, no trio, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ds4trio.request import Conversation


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model continues. ``text`` is for logs on request and for tests, never re-encoded."""

    text: str
    token_ids: list[int]


class ChatFormat(Protocol):
    """Runs on: any thread; calls may run side by side."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens with which the model ends its turn."""
        ...

    def render(self, conversation: Conversation) -> Prompt:
        """The conversation as the model was trained to see it, up to where the assistant speaks.

        Raises: RequestError if the model's format cannot express the conversation.
        """
        ...
