"""Every protocol that is served, by path. Router and tests iterate this one table."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ds4trio.protocols.anthropic_messages import AnthropicMessages
from ds4trio.protocols.openai_answer import error_body
from ds4trio.protocols.openai_chat import OpenAIChat
from ds4trio.protocols.openai_completions import OpenAICompletions
from ds4trio.protocols.openai_responses import OpenAIResponses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.errors import Ds4TrioError
    from ds4trio.protocols.wire import WireProtocol

_ALL: tuple[WireProtocol, ...] = (
    OpenAIChat(),
    OpenAICompletions(),
    AnthropicMessages(),
    OpenAIResponses(),
)

PROTOCOLS: Mapping[str, WireProtocol] = MappingProxyType({p.path: p for p in _ALL})


def render_error(error: Ds4TrioError) -> bytes:
    """The JSON body of an error on a route that belongs to no protocol; every client reads it."""
    return error_body(error)
