"""The official Python clients: in a thread, under asyncio and under Trio, read strictly.

A conversation is written once, as a coroutine; with a client that blocks, nothing in it waits.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import anthropic
import httpx2
import openai
import pytest
import trio
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from playing import assert_exactly
from pydantic import TypeAdapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import ModuleType

Result = TypeVar("Result")
#: A client of any kind: the same words are typed apart.
Client: TypeAlias = Any

every_way = pytest.mark.parametrize("how", ["thread", "asyncio", "trio"])

#: What may be read where; an answer's id is left out of its path.
WHOLE: dict[str, list[TypeAdapter[Any]]] = {
    "/v1/chat/completions": [TypeAdapter(ChatCompletion)],
    "/v1/completions": [TypeAdapter(Completion)],
    "/v1/responses": [TypeAdapter(Response)],
    "/v1/responses/": [TypeAdapter(Response)],
    "/v1/responses//input_items": [TypeAdapter(ResponseItemList)],
    "/v1/messages": [TypeAdapter(Message), TypeAdapter(BetaMessage)],
    "/v1/messages/count_tokens": [TypeAdapter(MessageTokensCount)],
}
EVENTS: dict[str, list[TypeAdapter[Any]]] = {
    "/v1/chat/completions": [TypeAdapter(ChatCompletionChunk)],
    "/v1/responses": [TypeAdapter(ResponseStreamEvent)],
    "/v1/messages": [TypeAdapter(RawMessageStreamEvent), TypeAdapter(BetaRawMessageStreamEvent)],
}
ERRORS: dict[str, list[TypeAdapter[Any]]] = {"/v1/messages": [TypeAdapter(ErrorResponse)]}
#: DeepSeek's, and what the services say although these types do not.
BESIDE = frozenset({"reasoning_content", "store", "status", "bytes", "name", "details"})


@dataclass
class Strictly:
    """A hook of the clients' connections: whatever they read is of their types, to the letter."""

    whole: int = 0
    streams: int = 0

    def __call__(self, response: httpx2.Response) -> None:
        response.read()
        self._check(response)

    async def later(self, response: httpx2.Response) -> None:
        await response.aread()
        self._check(response)

    def _check(self, response: httpx2.Response) -> None:
        path = re.sub(r"(?<=/)resp_\w+", "", response.request.url.path)
        if response.is_error:
            _assert_strictly(ERRORS[path], response.text)
        elif response.headers["content-type"].startswith("text/event-stream"):
            self.streams += 1
            for block in response.text.split("\n\n")[:-1]:
                data = block.rpartition("data: ")[2]
                if data != "[DONE]":
                    _assert_strictly(EVENTS[path], data)
        else:
            self.whole += 1
            _assert_strictly(WHOLE[path], response.text)


def _assert_strictly(types: list[TypeAdapter[Any]], text: str) -> None:
    for type_ in types:
        assert_exactly(type_.validate_json(text, strict=True), json.loads(text), beside=BESIDE)


async def in_way(
    how: str,
    library: ModuleType,
    url: str,
    converse: Callable[[Client], Awaitable[Result]],
) -> Result:
    """``library`` is one of `openai` and `anthropic`."""
    strictly = Strictly()
    root = f"{url}/v1" if library is openai else url
    options = {"base_url": root, "api_key": "none", "max_retries": 0}
    blocking, waiting = {
        openai: (openai.OpenAI, openai.AsyncOpenAI),
        anthropic: (anthropic.Anthropic, anthropic.AsyncAnthropic),
    }[library]

    async def block() -> Result:
        with (
            httpx2.Client(event_hooks={"response": [strictly]}) as http,
            blocking(http_client=http, **options) as client,
        ):
            return await converse(client)

    async def wait() -> Result:
        async with (
            httpx2.AsyncClient(event_hooks={"response": [strictly.later]}) as http,
            waiting(http_client=http, **options) as client,
        ):
            return await converse(client)

    match how:
        case "thread":
            result = await trio.to_thread.run_sync(asyncio.run, block())
        case "asyncio":
            result = await trio.to_thread.run_sync(asyncio.run, wait())
        case _:
            result = await wait()
    assert strictly.whole
    assert strictly.streams
    return result


async def now(value: Any) -> Any:  # noqa: ANN401 - whatever a client gives
    """A client's answer, whether it is to be waited for or not."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - whatever a client gives
    if hasattr(manager, "__aenter__"):
        async with manager as inner:
            yield inner
    else:
        with manager as inner:
            yield inner
