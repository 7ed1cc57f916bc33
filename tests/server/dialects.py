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

    from serving import Server

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
    #: How many events open a stream, before any text.
    opening_events: int = 0
    #: What stands at the very end of a stream that was cut to ``max_tokens``, and nowhere else.
    last: bytes = b"[DONE]"

    def fields(self, said: str, *, stream: bool, **extra: object) -> dict[str, Any]:
        fields = {**self.ask(said), "stream": stream, **extra}
        if stream:
            fields["stream_options"] = {"include_usage": True}
        return fields

    def text_so_far(self, body: bytes) -> str:
        """The text of a stream that goes on; ``body`` need not end with an event."""
        whole, separator, _ = body.rpartition(b"\n\n")
        events = stream_events(whole + separator) if whole else []
        choices = [e["choices"][0] for e in events if e != "[DONE]" and e["choices"]]
        return "".join(self.text(choice) for choice in choices)

    def is_sign_of_life(self, event: str) -> bool:
        """A comment, or an event that adds nothing to the answer and does not end it."""
        if event.startswith(COMMENT):
            return True
        (choice,) = json.loads(event.removeprefix("data: "))["choices"]
        said = choice.get("delta") or choice.get("text")
        return choice["finish_reason"] is None and not said

    def last_error(self, body: bytes) -> Any:  # noqa: ANN401 - JSON
        """The error with which a stream ends that must not look complete."""
        *before, last = stream_events(body)
        assert all("error" not in event for event in before)
        assert all(choice["finish_reason"] is None for e in before for choice in e["choices"])
        return last["error"]

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


class ResponsesDialect(Dialect):
    """The Responses API, its counts and ends under the names of the others."""

    def text_so_far(self, body: bytes) -> str:
        whole, separator, _ = body.rpartition(b"\n\n")
        events = responses_events(whole + separator) if whole else []
        return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")

    def is_sign_of_life(self, event: str) -> bool:
        if event.startswith(COMMENT):
            return True
        (data,) = responses_events(f"{event}\n\n".encode())
        return not str(data["type"]).startswith("response.")

    def last_error(self, body: bytes) -> Any:  # noqa: ANN401 - JSON
        *before, last = responses_events(body)
        assert not {"response.completed", "response.incomplete"} & {e["type"] for e in before}
        assert last["type"] == "response.failed"
        return last["response"]["error"]

    def read(self, body: bytes, *, stream: bool) -> Answer:
        events = responses_events(body) if stream else []
        response = events[-1]["response"] if stream else json.loads(body)
        text = "".join(self.text(item) for item in response["output"])
        if stream:
            assert self.text_so_far(body) == text
        usage = response["usage"]
        told = [response, *(event["response"] for event in events if "response" in event)]
        return Answer(
            text=text,
            finish=[{"completed": "stop", "incomplete": "length"}[response["status"]]],
            usage={
                "prompt_tokens": usage["input_tokens"],
                "completion_tokens": usage["output_tokens"],
                "total_tokens": usage["total_tokens"],
            },
            models={each["model"] for each in told},
            ids={each["id"] for each in told},
        )


def responses_events(body: bytes) -> list[Any]:
    """The data of all events, each of which names its type twice."""
    assert body.endswith(b"\n\n")
    events = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        if block.startswith(COMMENT):
            continue
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert events[-1]["type"] == name.removeprefix("event: ")
    return events


_ALL = [
    Dialect(
        name="chat",
        path="/v1/chat/completions",
        ask=lambda said: {"messages": [{"role": "user", "content": said}]},
        text=chat_text,
        prompt_param="messages",
        opening_events=1,
    ),
    Dialect(
        name="completions",
        path="/v1/completions",
        # What the scripted engine makes of a conversation.
        ask=lambda said: {"prompt": f"user: {said}\nassistant: "},
        text=lambda choice: str(choice["text"]),
        prompt_param="prompt",
    ),
    ResponsesDialect(
        name="responses",
        path="/v1/responses",
        ask=lambda said: {"input": said},
        text=lambda item: "".join(part["text"] for part in item["content"]),
        prompt_param="input",
        opening_events=2,
        last=b"event: response.incomplete",
    ),
]

DIALECTS = [dialect for dialect in _ALL if dialect.path in PROTOCOLS]

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
