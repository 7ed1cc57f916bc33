"""Asking a protocol for something: what the tests of all of them share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ds4trio.errors import RequestError
from ds4trio.protocols.anthropic_messages import AnthropicMessages
from ds4trio.protocols.openai_chat import OpenAIChat
from ds4trio.protocols.openai_completions import OpenAICompletions

if TYPE_CHECKING:
    from ds4trio.protocols.wire import ParsedRequest, WireProtocol
    from ds4trio.request import GenerationRequest

CHAT = OpenAIChat(new_id=lambda: "0123abcd", now=lambda: 1_700_000_000.9)
COMPLETIONS = OpenAICompletions(new_id=lambda: "0123abcd", now=lambda: 1_700_000_000.9)
MESSAGES = AnthropicMessages(new_id=lambda: "0123abcd")

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
ONCE: dict[str, Any] = {"prompt": "Once"}
#: The least that each endpoint can be asked.
LEAST: dict[str, dict[str, Any]] = {CHAT.path: HELLO, COMPLETIONS.path: ONCE, MESSAGES.path: HELLO}

each_openai = pytest.mark.parametrize("protocol", [CHAT, COMPLETIONS], ids=lambda p: p.name)
each_protocol = pytest.mark.parametrize(
    "protocol", [CHAT, COMPLETIONS, MESSAGES], ids=lambda p: p.name
)


def parse(protocol: WireProtocol, **fields: object) -> ParsedRequest:
    return protocol.parse(json.dumps(LEAST[protocol.path] | fields).encode(), "served")


def asked(protocol: WireProtocol, **fields: object) -> GenerationRequest:
    return parse(protocol, **fields).generation


def refused(protocol: WireProtocol, **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(protocol, **fields)
    error = caught.value
    assert error.status == 400
    assert error.param is None or error.message.startswith(error.param + ": ")
    return error
