"""The official Anthropic client against the server: in a thread, under asyncio, and under Trio."""

from __future__ import annotations

import asyncio
import gc
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anthropic
import jsonschema
import pytest
import trio
from dialects import prompt_tokens
from serving import repeating, saying, serving

import ds4trio
from ds4trio.testing import END_ID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from anthropic.types import Message

Result = TypeVar("Result")

every_way = pytest.mark.parametrize("how", ["thread", "asyncio", "trio"])
#: The client leaves the generators of a finished stream to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(anthropic|httpx2|httpcore2)")

QUESTION = "Explain what a hash table is in one sentence."
ANSWER = "A table — 表 — of keys to values 😀"
ANSWER_TOKENS = len(ANSWER.encode())


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    yield
    gc.collect()


@dataclass(frozen=True, slots=True)
class Heard:
    """How an answer ended, and its text and usage."""

    text: str
    stop_reason: str | None
    stop_sequence: str | None
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Told:
    """One question: counted, asked whole, and asked as a stream, piece by piece and folded."""

    counted: int
    whole: Heard
    pieces: str
    folded: Heard


def question(said: str = QUESTION) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": said}]}


def heard(message: Message) -> Heard:
    return Heard(
        text="".join(block.text for block in message.content if block.type == "text"),
        stop_reason=message.stop_reason,
        stop_sequence=message.stop_sequence,
        input_tokens=message.usage.input_tokens,
        output_tokens=message.usage.output_tokens,
    )


def options_of(url: str, **extra: object) -> dict[str, Any]:
    return {"base_url": url, "api_key": "none", "max_retries": 0, **extra}


async def with_client(
    how: str,
    url: str,
    sync: Callable[[anthropic.Anthropic], Result],
    anyio: Callable[[anthropic.AsyncAnthropic], Awaitable[Result]],
) -> Result:
    def in_thread() -> Result:
        with anthropic.Anthropic(**options_of(url)) as client:
            return sync(client)

    async def here() -> Result:
        async with anthropic.AsyncAnthropic(**options_of(url)) as client:
            return await anyio(client)

    match how:
        case "thread":
            return await trio.to_thread.run_sync(in_thread)
        case "asyncio":
            return await trio.to_thread.run_sync(asyncio.run, here())
        case _:
            return await here()


async def told(how: str, url: str, **extra: object) -> Told:
    """``extra`` are fields of the request beside the question."""
    asked = question() | extra

    def converse(client: anthropic.Anthropic) -> Told:
        counted = client.messages.count_tokens(**question())
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            pieces = "".join(stream.text_stream)
            folded = stream.get_final_message()
        return Told(counted.input_tokens, heard(whole), pieces, heard(folded))

    async def converse_async(client: anthropic.AsyncAnthropic) -> Told:
        counted = await client.messages.count_tokens(**question())
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            pieces = "".join([piece async for piece in stream.text_stream])
            folded = await stream.get_final_message()
        return Told(counted.input_tokens, heard(whole), pieces, heard(folded))

    return await with_client(how, url, converse, converse_async)


@every_way
@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence", "tokens"),
    [
        ({"max_tokens": 100}, ANSWER, "end_turn", None, ANSWER_TOKENS),
        ({"max_tokens": 7}, ANSWER[:7], "max_tokens", None, 7),
        (
            {"max_tokens": 100, "stop_sequences": ["nowhere", " of"]},
            "A table — 表 —",
            "stop_sequence",
            " of",
            len("A table — 表 — of".encode()),
        ),
    ],
    ids=["to the end", "max_tokens", "stop_sequences"],
)
async def test_every_kind_of_answer(
    how: str,
    fields: dict[str, Any],
    text: str,
    reason: str,
    sequence: str | None,
    tokens: int,
) -> None:
    async with serving(saying(ANSWER, END_ID)) as server:
        answer = await told(how, server.url, **fields)
    asked = prompt_tokens(QUESTION)
    expected = Heard(text, reason, sequence, asked, tokens)
    assert answer == Told(counted=asked, whole=expected, pieces=text, folded=expected)


def leave(client: anthropic.Anthropic) -> None:
    """Close a stream in the middle."""
    with client.messages.stream(max_tokens=2000, **question()) as stream:
        next(iter(stream.text_stream))


async def leave_async(client: anthropic.AsyncAnthropic) -> None:
    async with client.messages.stream(max_tokens=2000, **question()) as stream:
        async for _ in stream.text_stream:
            break


@every_way
async def test_closing_a_stream_ends_the_work(how: str) -> None:
    async with serving(repeating) as server:
        await with_client(how, server.url, leave, leave_async)
        await server.idle()
        figures = await server.metrics()
        assert not server.model.live_states
    assert figures['ds4trio_disconnects_total{phase="decode"}'] == 1
    assert figures["ds4trio_wasted_generated_tokens_total"] <= 1


# --- errors ---


async def refusal(url: str, said: str = QUESTION, **extra: object) -> anthropic.APIStatusError:
    async with anthropic.AsyncAnthropic(**options_of(url, **extra)) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(max_tokens=10, **question(said))
    assert caught.value.request_id is not None
    return caught.value


def words(error: anthropic.APIStatusError) -> tuple[str, str]:
    """Kind and message, as the server said them."""
    assert isinstance(error.body, dict)
    return error.body["error"]["type"], error.body["error"]["message"]


async def test_a_prompt_that_is_too_long() -> None:
    """In the sentence from which Claude Code learns both numbers. One token is the answer's."""
    said = "x" * (130 - prompt_tokens(""))
    async with serving(repeating, context_tokens=128) as server:
        error = await refusal(server.url, said)
    assert isinstance(error, anthropic.BadRequestError)
    sentence = "prompt is too long: 130 tokens > 127 maximum"
    assert words(error) == ("invalid_request_error", sentence)


async def test_a_prompt_that_is_hopelessly_long() -> None:
    """It is not counted to its end, and the same sentence says so at its own end."""
    said = "x" * 200_000
    async with serving(repeating, context_tokens=128) as server:
        error = await refusal(server.url, said)
    assert isinstance(error, anthropic.BadRequestError)
    kind, message = words(error)
    numbers = re.match(r"prompt is too long: (\d+) tokens > 127 maximum \(at least", message)
    assert kind == "invalid_request_error"
    assert numbers is not None
    assert 127 < int(numbers[1]) <= prompt_tokens(said)


async def test_a_wrong_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-right\n")
    async with serving(saying(ANSWER, END_ID), api_keys_file=keys) as server:
        error = await refusal(server.url, api_key="sk-wrong")
        right = options_of(server.url, api_key="sk-right")
        async with anthropic.AsyncAnthropic(**right) as client:
            message = await client.messages.create(max_tokens=100, **question())
    assert isinstance(error, anthropic.AuthenticationError)
    assert words(error)[0] == "authentication_error"
    assert heard(message).text == ANSWER


async def test_a_full_queue() -> None:
    async with (
        serving(repeating, gated=True, max_running=1, max_waiting=0) as server,
        trio.open_nursery() as nursery,
    ):

        @nursery.start_soon
        async def running() -> None:
            async with anthropic.AsyncAnthropic(**options_of(server.url)) as client:
                message = await client.messages.create(max_tokens=4, **question("Hi"))
            assert heard(message).text == "HiHi"

        await server.gate.reached(1)
        error = await refusal(server.url)
        server.gate.open()
    assert isinstance(error, anthropic.OverloadedError)
    assert words(error)[0] == "overloaded_error"


# --- the default model ---

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [{"name": "get_weather", "description": "The weather in a city", "input_schema": WEATHER}]


@pytest.mark.model
async def test_a_forced_tool_and_its_result(default_model: Path) -> None:
    settings = ds4trio.Settings(port=0, threads=1)
    asked = question("How warm is it in Paris?") | {"tools": TOOLS}
    asked["extra_body"] = {"temperature": 0}  # the client knows no such field
    async with (
        ds4trio.open_engine(str(default_model), settings) as engine,
        trio.open_nursery() as nursery,
    ):
        (url,) = await nursery.start(ds4trio.serve, engine, settings)
        async with anthropic.AsyncAnthropic(**options_of(url)) as client:
            asked["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
            async with client.messages.stream(max_tokens=40, **asked) as stream:
                called = await stream.get_final_message()
            assert called.stop_reason == "tool_use"
            (call,) = called.content
            assert call.type == "tool_use"
            assert call.name == "get_weather"
            jsonschema.validate(call.input, WEATHER)

            result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
            asked["messages"] += [
                {"role": "assistant", "content": called.content},
                {"role": "user", "content": [result]},
            ]
            asked["tool_choice"] = {"type": "auto"}
            counted = await client.messages.count_tokens(**asked)
            answer = await client.messages.create(max_tokens=8, **asked)
            # Its beginning was computed for the question.
            reused = answer.usage.cache_read_input_tokens or 0
            assert answer.usage.input_tokens + reused == counted.input_tokens
            assert reused > counted.input_tokens / 2
            assert answer.content
        nursery.cancel_scope.cancel()
