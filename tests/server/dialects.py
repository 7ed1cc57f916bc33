"""How to ask for an answer, and read it, in each protocol: what the tests of all of them share.

Written from the protocols' references, so that the server is judged by something other than itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ds4trio.protocols.table import PROTOCOLS

if TYPE_CHECKING:
    from serving import Server

COMMENT = ":"
#: What a tool takes.
PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client makes of an answer, in OpenAI's words."""

    text: str
    finish: str
    prompt_tokens: int
    generated_tokens: int
    models: set[str]
    ids: set[str]


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. Comments have neither name nor data."""

    name: str | None
    data: Any

    @property
    def is_comment(self) -> bool:
        return self.data is None


def stream_events(body: bytes) -> list[Event]:
    """All whole events of a stream, of which ``body`` is a beginning."""
    return [_event(block) for block in body.decode().split("\n\n")[:-1]]


def _event(block: str) -> Event:
    if block.startswith(COMMENT):
        return Event(None, None)
    lines = dict(line.split(": ", 1) for line in block.split("\n"))
    assert lines.keys() <= {"event", "data"}
    data = lines["data"]
    return Event(lines.get("event"), json.loads(data) if data.startswith("{") else data)


class Dialect:
    """One protocol. The prompt that the model sees is the same in all."""

    name: ClassVar[str]
    path: ClassVar[str]
    #: The field to blame for a prompt that is too long.
    prompt_param: ClassVar[str]
    #: The status of a full queue.
    overloaded = 429

    def ask(self, said: str) -> dict[str, Any]:
        """The fields that hold what the user says."""
        raise NotImplementedError

    def tool(self, name: str) -> dict[str, Any]:
        """The offer of a function of one string, ``x``."""
        raise NotImplementedError

    def fields(self, said: str, *, stream: bool, **extra: Any) -> dict[str, Any]:
        """A request; ``extra`` are fields as OpenAI calls them."""
        return {**self.ask(said), **extra, "stream": stream}

    def read(self, body: bytes, *, stream: bool) -> Answer:
        """A whole answer. Fails if it is not complete."""
        raise NotImplementedError

    def text_so_far(self, body: bytes) -> str:
        """The text of a stream's beginning."""
        raise NotImplementedError

    def is_sign_of_life(self, event: Event) -> bool:
        """Whether it adds nothing to the answer, and does not end it."""
        raise NotImplementedError

    def last_error(self, body: bytes) -> str:
        """What a stream that was ended early says last. Fails if it could pass for complete."""
        raise NotImplementedError


class OpenAIDialect(Dialect):
    """Chat and completions: one choice in each chunk."""

    def fields(self, said: str, *, stream: bool, **extra: Any) -> dict[str, Any]:
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        return super().fields(said, stream=stream, **extra, **usage)

    def piece(self, choice: Any) -> str:  # noqa: ANN401 - JSON
        raise NotImplementedError

    def text_so_far(self, body: bytes) -> str:
        said = [event.data for event in stream_events(body) if isinstance(event.data, dict)]
        return "".join(self.piece(choice) for data in said for choice in data["choices"])

    def read(self, body: bytes, *, stream: bool) -> Answer:
        if not stream:
            chunks = [json.loads(body)]
        else:
            chunks = [event.data for event in stream_events(body) if not event.is_comment]
            assert chunks.pop() == "[DONE]"
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        (finish,) = [c["finish_reason"] for c in choices if c["finish_reason"]]
        usage = chunks[-1]["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        return Answer(
            text="".join(self.piece(choice) for choice in choices),
            finish=finish,
            prompt_tokens=usage["prompt_tokens"],
            generated_tokens=usage["completion_tokens"],
            models={chunk["model"] for chunk in chunks},
            ids={chunk["id"] for chunk in chunks},
        )

    def is_sign_of_life(self, event: Event) -> bool:
        if event.is_comment:
            return True
        (choice,) = event.data["choices"]
        return choice["finish_reason"] is None and not self.piece(choice)

    def last_error(self, body: bytes) -> str:
        *before, last = [event.data for event in stream_events(body) if not event.is_comment]
        assert not [c for chunk in before for c in chunk["choices"] if c["finish_reason"]]
        return str(last["error"]["message"])


class Chat(OpenAIDialect):
    name = "chat"
    path = "/v1/chat/completions"
    prompt_param = "messages"

    def ask(self, said: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": said}]}

    def tool(self, name: str) -> dict[str, Any]:
        function = {"name": name, "description": name, "parameters": PARAMETERS}
        return {"type": "function", "function": function}

    def piece(self, choice: Any) -> str:  # noqa: ANN401 - JSON
        return (choice.get("message") or choice["delta"]).get("content") or ""


class Completions(OpenAIDialect):
    name = "completions"
    path = "/v1/completions"
    prompt_param = "prompt"

    def ask(self, said: str) -> dict[str, Any]:
        # What the scripted engine makes of a conversation.
        return {"prompt": f"user: {said}\nassistant: "}

    def piece(self, choice: Any) -> str:  # noqa: ANN401 - JSON
        return str(choice["text"])


class Responses(Dialect):
    name = "responses"
    path = "/v1/responses"
    prompt_param = "input"

    def ask(self, said: str) -> dict[str, Any]:
        return {"input": said, "store": False}

    def tool(self, name: str) -> dict[str, Any]:
        return {"type": "function", "name": name, "description": name, "parameters": PARAMETERS}

    def events(self, body: bytes) -> list[dict[str, Any]]:
        events = [event for event in stream_events(body) if not event.is_comment]
        assert all(event.name == event.data["type"] for event in events)
        return [event.data for event in events]

    def text_so_far(self, body: bytes) -> str:
        deltas = [e for e in self.events(body) if e["type"] == "response.output_text.delta"]
        return "".join(event["delta"] for event in deltas)

    def read(self, body: bytes, *, stream: bool) -> Answer:
        events = self.events(body) if stream else []
        response = events[-1]["response"] if stream else json.loads(body)
        text = "".join(part["text"] for item in response["output"] for part in item["content"])
        if stream:
            assert self.text_so_far(body) == text
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        told = [response, *(event["response"] for event in events if "response" in event)]
        return Answer(
            text=text,
            finish={"completed": "stop", "incomplete": "length"}[response["status"]],
            prompt_tokens=usage["input_tokens"],
            generated_tokens=usage["output_tokens"],
            models={each["model"] for each in told},
            ids={each["id"] for each in told},
        )

    def is_sign_of_life(self, event: Event) -> bool:
        return event.is_comment or not event.data["type"].startswith("response.")

    def last_error(self, body: bytes) -> str:
        *before, last = self.events(body)
        assert last["type"] == "response.failed"
        assert not {"response.completed", "response.incomplete"} & {e["type"] for e in before}
        (told,) = [event for event in before if event["type"] == "error"]
        return str(told["message"])


class Messages(Dialect):
    name = "messages"
    path = "/v1/messages"
    prompt_param = "messages"
    overloaded = 529

    def ask(self, said: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": said}], "max_tokens": 4000}

    def tool(self, name: str) -> dict[str, Any]:
        return {"name": name, "description": name, "input_schema": PARAMETERS}

    def fields(self, said: str, *, stream: bool, **extra: Any) -> dict[str, Any]:
        if "stop" in extra:
            stop = extra.pop("stop")
            extra["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        return super().fields(said, stream=stream, **extra)

    def events(self, body: bytes) -> list[dict[str, Any]]:
        events = [event for event in stream_events(body) if not event.is_comment]
        assert all(event.name == event.data["type"] for event in events)
        return [event.data for event in events if event.name != "ping"]

    def text_so_far(self, body: bytes) -> str:
        deltas = [e["delta"] for e in self.events(body) if e["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas)

    def read(self, body: bytes, *, stream: bool) -> Answer:
        if stream:
            first, *_, delta, last = self.events(body)
            assert (first["type"], delta["type"]) == ("message_start", "message_delta")
            assert last["type"] == "message_stop"
            message, text = first["message"], self.text_so_far(body)
            end, usage = delta["delta"], delta["usage"]
        else:
            message = end = json.loads(body)
            text = "".join(block["text"] for block in message["content"])
            usage = message["usage"]
        words = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}
        return Answer(
            text=text,
            finish=words[end["stop_reason"]],
            prompt_tokens=usage["input_tokens"],
            generated_tokens=usage["output_tokens"],
            models={message["model"]},
            ids={message["id"]},
        )

    def is_sign_of_life(self, event: Event) -> bool:
        return event.is_comment or event.name == "ping"

    def last_error(self, body: bytes) -> str:
        *before, last = self.events(body)
        assert last["type"] == "error"
        assert not {"message_delta", "message_stop"} & {event["type"] for event in before}
        return str(last["error"]["message"])


_ALL: list[Dialect] = [Chat(), Completions(), Messages(), Responses()]
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
