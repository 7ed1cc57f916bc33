"""How to ask for an answer, and read it, in each protocol: what the tests of all of them share.

Written from the protocols' references, so that the server is judged by something other than itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ds4trio.protocols.table import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.serving import Server

COMMENT = ":"


@dataclass(frozen=True, slots=True)
class Dialect:
    """``ask`` makes a request's fields from what the user says; the prompts are the same in all.

    ``text``, ``finish`` and ``usage`` read a whole answer, or one event of a stream.
    """

    name: str
    path: str
    ask: Callable[[str], dict[str, Any]]
    text: Callable[[Any], str]
    #: The field to blame for a prompt that is too long.
    prompt_param: str

    def fields(self, said: str, *, stream: bool, **extra: object) -> dict[str, Any]:
        fields = {**self.ask(said), "stream": stream, **extra}
        if stream:
            fields["stream_options"] = {"include_usage": True}
        return fields

    def read(self, body: bytes, *, stream: bool) -> Answer:
        events = stream_events(body) if stream else [json.loads(body)]
        if stream:
            assert events.pop() == "[DONE]"
        choices = [event["choices"][0] for event in events if event["choices"]]
        return Answer(
            text="".join(self.text(choice) for choice in choices),
            finish=[c["finish_reason"] for c in choices if c["finish_reason"]],
            usage=events[-1]["usage"],
            models={event["model"] for event in events},
            ids={event["id"] for event in events},
        )


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    finish: list[str]
    usage: dict[str, Any]
    models: set[str]
    ids: set[str]


def stream_events(body: bytes) -> list[Any]:
    """The data of all events, comments left out. Each is one JSON value, or a bare word."""
    assert body.endswith(b"\n\n")
    blocks = body.decode().removesuffix("\n\n").split("\n\n")
    events = [block.removeprefix("data: ") for block in blocks if not block.startswith(COMMENT)]
    return [json.loads(event) if event.startswith("{") else event for event in events]


def chat_text(choice: Any) -> str:  # noqa: ANN401 - JSON
    return (choice.get("message") or choice["delta"]).get("content") or ""


DIALECTS = [
    Dialect(
        name="chat",
        path="/v1/chat/completions",
        ask=lambda said: {"messages": [{"role": "user", "content": said}]},
        text=chat_text,
        prompt_param="messages",
    ),
    Dialect(
        name="completions",
        path="/v1/completions",
        # What the scripted engine makes of a conversation.
        ask=lambda said: {"prompt": f"user: {said}\nassistant: "},
        text=lambda choice: str(choice["text"]),
        prompt_param="prompt",
    ),
]

assert {dialect.path for dialect in DIALECTS} == PROTOCOLS.keys(), "a protocol without its tests"

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
whole_or_stream = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def prompt_tokens(said: str) -> int:
    """By hand: one token a byte, and one that begins the text."""
    return 1 + len(f"user: {said}\nassistant: ".encode())


async def ask(
    server: Server, dialect: Dialect, said: str = "Hi", *, stream: bool, **extra: object
) -> Answer:
    async with await server.connect() as client:
        await client.post(dialect.path, dialect.fields(said, stream=stream, **extra))
        status, body = await client.response()
    assert status == 200, body
    return dialect.read(body, stream=stream)


def requests_total(dialect: Dialect, stream: bool, outcome: str) -> str:
    """A sample's name; labels stand in the order in which they were declared."""
    flag = "true" if stream else "false"
    return (
        f'ds4trio_requests_total{{outcome="{outcome}",protocol="{dialect.name}",stream="{flag}"}}'
    )
