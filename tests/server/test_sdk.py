"""The official OpenAI client against the server: in a thread, under asyncio, and under Trio."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import openai
import pytest
import trio
import trio.testing
from dialects import prompt_tokens
from serving import repeating, saying, serving, until

import ds4trio
from ds4trio.testing import END_ID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

Result = TypeVar("Result")

every_way = pytest.mark.parametrize("how", ["thread", "asyncio", "trio"])
#: The client leaves the generators of a finished stream to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx|httpcore)")

QUESTION = "Explain what a hash table is in one sentence."
PROMPT = f"user: {QUESTION}\nassistant: "
ANSWER = "A table — 表 — of keys to values 😀"
#: All of that answer, with its end; a real one is cut.
TOKENS = 44


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@dataclass(frozen=True, slots=True)
class Heard:
    """One question, asked whole and as a stream, as a chat and as a text to be continued."""

    chat: str | None
    chat_stream: str
    completion: str
    completion_stream: str
    usage: set[tuple[int, int]]


def asked(**extra: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": "any", "temperature": 0, "max_tokens": TOKENS, "messages": messages, **extra}


def continued(**extra: object) -> dict[str, Any]:
    return {"model": "any", "temperature": 0, "max_tokens": TOKENS, "prompt": PROMPT, **extra}


WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def converse(client: openai.OpenAI) -> Heard:
    chat = client.chat.completions.create(**asked())
    chunks = list(client.chat.completions.create(**asked(**WITH_USAGE)))
    text = client.completions.create(**continued())
    pieces = list(client.completions.create(**continued(stream=True)))
    return heard(chat, chunks, text, pieces)


def say(client: openai.OpenAI) -> tuple[str, str]:
    """A chat's answer, whole and as a stream."""
    chat = client.chat.completions.create(**asked())
    chunks = client.chat.completions.create(**asked(stream=True))
    return chat.choices[0].message.content, "".join(map(piece_of, chunks))


async def say_async(client: openai.AsyncOpenAI) -> tuple[str, str]:
    chat = await client.chat.completions.create(**asked())
    chunks = await client.chat.completions.create(**asked(stream=True))
    return chat.choices[0].message.content, "".join([piece_of(chunk) async for chunk in chunks])


def piece_of(chunk: Any) -> str:  # noqa: ANN401 - the types are the client's, behind overloads
    return "".join(choice.delta.content or "" for choice in chunk.choices)


async def converse_async(client: openai.AsyncOpenAI) -> Heard:
    chat = await client.chat.completions.create(**asked())
    stream = await client.chat.completions.create(**asked(**WITH_USAGE))
    chunks = [chunk async for chunk in stream]
    text = await client.completions.create(**continued())
    more = await client.completions.create(**continued(stream=True))
    return heard(chat, chunks, text, [piece async for piece in more])


def heard(chat: Any, chunks: list[Any], text: Any, pieces: list[Any]) -> Heard:  # noqa: ANN401
    """``chunks`` end with the usage."""
    usages = [chat.usage, chunks[-1].usage]
    return Heard(
        chat=chat.choices[0].message.content,
        chat_stream="".join(map(piece_of, chunks)),
        completion=text.choices[0].text,
        completion_stream="".join(piece.choices[0].text for piece in pieces),
        usage={(usage.prompt_tokens, usage.completion_tokens) for usage in usages},
    )


def leave(client: openai.OpenAI) -> None:
    """Close a stream in the middle."""
    with client.chat.completions.create(**asked(stream=True, max_tokens=2000)) as stream:
        for _, _ in zip(range(3), stream, strict=False):
            pass


async def leave_async(client: openai.AsyncOpenAI) -> None:
    request = asked(stream=True, max_tokens=2000)
    async with await client.chat.completions.create(**request) as stream:
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break


async def with_client(
    how: str,
    url: str,
    sync: Callable[[openai.OpenAI], Result],
    anyio: Callable[[openai.AsyncOpenAI], Awaitable[Result]],
) -> Result:
    options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}

    def in_thread() -> Result:
        with openai.OpenAI(**options) as client:
            return sync(client)

    async def here() -> Result:
        async with openai.AsyncOpenAI(**options) as client:
            return await anyio(client)

    match how:
        case "thread":
            return await trio.to_thread.run_sync(in_thread)
        case "asyncio":
            return await trio.to_thread.run_sync(asyncio.run, here())
        case _:
            return await here()


@every_way
async def test_every_kind_of_answer(how: str) -> None:
    async with serving(saying(ANSWER, END_ID)) as server:
        told = await with_client(how, server.url, converse, converse_async)
    usage = (prompt_tokens(QUESTION), len(ANSWER.encode()))
    assert told == Heard(ANSWER, ANSWER, ANSWER, ANSWER, {usage})


@every_way
async def test_closing_a_stream_ends_the_work(how: str) -> None:
    async with serving(repeating) as server:
        await with_client(how, server.url, leave, leave_async)
        await server.idle()
        figures = await server.metrics()
        assert not server.model.live_states
    assert figures['ds4trio_disconnects_total{phase="decode"}'] == 1
    assert figures["ds4trio_wasted_generated_tokens_total"] <= 1


async def test_a_scope_around_the_client_ends_the_work_before_the_first_byte() -> None:
    async with (
        serving(repeating, gated=True) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def ask() -> None:
                    await client.chat.completions.create(**asked(max_tokens=2000))

                await server.gate.reached(1)
                scope.cancel()
        (exchange,) = server.state.live.values()
        await until(lambda: exchange.record.outcome)
        await trio.testing.wait_all_tasks_blocked()
        server.gate.open()
        await server.idle()
        assert len(server.model.forwards) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"temperature": 9}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, openai.BadRequestError),
        ({"model": "other"}, openai.NotFoundError),
    ],
)
async def test_errors_are_the_clients_own(
    fields: dict[str, Any], error: type[openai.APIStatusError]
) -> None:
    async with (
        serving(repeating, strict_model_name=True, served_model_name="any") as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(error) as caught:
            await client.chat.completions.create(**asked() | fields)
        assert caught.value.request_id is not None
        assert caught.value.code != "500"
        models = await client.models.list()
        assert [model.id for model in models.data] == ["any"]


# --- the default model ---


def transformers_answer(folder: Path) -> str:
    """Greedy, by another implementation on the same weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    prompt: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    made = model.generate(**prompt, do_sample=False, max_new_tokens=TOKENS)
    answer = made[0, prompt["input_ids"].shape[1] :]
    return str(tokenizer.decode(answer, skip_special_tokens=True))


@pytest.mark.model
@pytest.mark.oracle
@pytest.mark.slow
async def test_the_default_model_answers_as_transformers_does(default_model: Path) -> None:
    expected = transformers_answer(default_model)
    settings = ds4trio.Settings(port=0, threads=1)
    async with (
        ds4trio.open_engine(str(default_model), settings) as engine,
        trio.open_nursery() as nursery,
    ):
        (url,) = await nursery.start(ds4trio.serve, engine, settings)
        for how in ("thread", "asyncio", "trio"):
            said = await with_client(how, url, say, say_async)
            assert said == (expected, expected)
        nursery.cancel_scope.cancel()
