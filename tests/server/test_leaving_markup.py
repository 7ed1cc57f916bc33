"""A client that leaves while the model thinks, or writes a tool call: the work ends alike."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from serving import said, serving, until

from ds4trio.chat.template import TemplateChatFormat
from ds4trio.testing import END_ID, ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from serving import Server

#: Plain lines, as the scripted engine's own; it tells of the markup of thoughts and calls.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
    '{% for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
    "{% if tools %}{% endif %}assistant: {% if thinking %}{% endif %}{# </think> #}"
)
PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}}
FUNCTION = {"name": "f", "description": "f", "parameters": PARAMETERS}


@dataclass(frozen=True, slots=True)
class Markup:
    """An answer that never leaves its markup, and by what a client sees that it is there."""

    name: str
    beginning: bytes
    then: bytes
    signs: tuple[bytes, ...]


MARKUPS = [
    Markup(
        "thinking",
        b"<think>",
        b"deep ",
        (b"reasoning_content", b"thinking_delta", b"response.reasoning_text.delta"),
    ),
    Markup(
        "arguments",
        b'<tool_call>{"name": "f", "arguments": {"x": "',
        b"deep ",
        (b'"arguments":"{', b"input_json_delta", b"function_call_arguments.delta"),
    ),
]


@dataclass(frozen=True, slots=True)
class Asking:
    """How one protocol offers a tool."""

    path: str
    ask: dict[str, Any]
    tool: dict[str, Any]


ASKINGS = [
    Asking(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"type": "function", "function": FUNCTION},
    ),
    Asking(
        "/v1/messages",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2000},
        {"name": "f", "description": "f", "input_schema": PARAMETERS},
    ),
    Asking("/v1/responses", {"input": "Hi"}, {"type": "function", **FUNCTION}),
]


@asynccontextmanager
async def thinking_or_calling(markup: Markup) -> AsyncIterator[Server]:
    def script(token_ids: Sequence[int]) -> int:
        _, answered = said(token_ids)
        if len(answered) < len(markup.beginning):
            return markup.beginning[len(answered)]
        return markup.then[(len(answered) - len(markup.beginning)) % len(markup.then)]

    chat = TemplateChatFormat(TEMPLATE, ByteTokenizer(), variables={}, stop_ids={END_ID})
    async with serving(script, gated=True, max_running=1, chat_format=chat) as server:
        yield server


@pytest.mark.parametrize("way", ["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("markup", MARKUPS, ids=lambda markup: markup.name)
@pytest.mark.parametrize("asking", ASKINGS, ids=lambda asking: asking.path[4:])
async def test_leaving_within_markup(
    asking: Asking, markup: Markup, stream: bool, way: str
) -> None:
    async with thinking_or_calling(markup) as server:
        fields = {**asking.ask, "stream": stream, "tools": [asking.tool]}
        leaver = await server.connect()
        await leaver.post(asking.path, fields)
        # One forward for the prompt, one for each token: held in the middle of the markup.
        within = 1 + len(markup.beginning) + 2 * len(markup.then)
        await server.gate.reached(1)
        server.gate.release(within - 1)
        await server.gate.reached(within)
        if stream:
            assert (await leaver.head()).status_code == 200
            await leaver.read_until(lambda body: any(sign in body for sign in markup.signs))
        follower = await server.connect()
        await follower.post("/v1/completions", {"prompt": "user: B\nassistant: ", "max_tokens": 1})
        await until(lambda: server.engine.engine.stats.waiting == 1)
        await (leaver.fin() if way == "fin" else leaver.rst())
        await until(lambda: _flagged(server))
        server.gate.open()
        assert (await follower.response())[0] == 200
        await server.idle()
        rows = server.rows(0)
        assert rows[-1][0] == within, "a forward began for a client that had left"
        assert server.rows(1)[0][0] == within + 1, "the next one waited"
        assert not server.model.live_states
        assert server.engine.engine.stats.wasted_generated_tokens <= 1
        figures = await server.metrics()
        assert figures['ds4trio_disconnects_total{phase="decode"}'] == 1


def _flagged(server: Server) -> bool:
    """Whether the server knows that somebody has left."""
    return any(exchange.record.outcome is not None for exchange in server.state.live.values())
