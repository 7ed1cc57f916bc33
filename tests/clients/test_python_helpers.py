"""The helpers of the official Python clients: what they parse, fold and run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import anthropic
import openai
import pytest
from anthropic import beta_async_tool, beta_tool
from openai import pydantic_function_tool
from pydantic import BaseModel
from serving import serving
from talking import MARK, repeat, talking, talking_format
from ways import entered, every_way, in_way, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from serving import Server
    from ways import Client

#: The clients leave the generators of a finished stream to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator '(openai|anthropic|httpx2|httpcore2)"
)


class Person(BaseModel):
    name: str
    age: int


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


ADA = Person(name="Ada", age=36)
PARIS = GetWeather(city="Paris", unit="celsius")
#: The scripted model repeats what it hears; a tool's result it puts in a sentence.
PERSON = ADA.model_dump_json()
CALL = f'<tool_call>{{"name": "GetWeather", "arguments": {PARIS.model_dump_json()}}}</tool_call>'
THINKING = f"<think>Paris, then.</think>{CALL}"
FINAL = "It is 21 degrees."
RAW = f"{MARK}user: Hi{MARK}assistant: "


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(
        talking(repeat), chat_format=talking_format(), prefill_chunk_tokens=4096
    ) as it:
        yield it


def user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


# --- chat ---


async def chat(client: Client) -> list[Any]:
    completions = client.chat.completions
    told: list[Any] = []
    form: dict[str, Any] = {"model": "any", "messages": [user(PERSON)], "response_format": Person}
    parsed = await now(completions.parse(**form))
    async with entered(completions.stream(**form)) as stream:
        folded = await now(stream.get_final_completion())
    told += [answer.choices[0].message.parsed for answer in (parsed, folded)]

    asked: dict[str, Any] = {"model": "any", "tools": [pydantic_function_tool(GetWeather)]}
    messages = [user(THINKING)]
    called = await now(completions.parse(**asked, messages=messages))
    async with entered(completions.stream(**asked, messages=messages)) as stream:
        folded = await now(stream.get_final_completion())
    for answer in (called, folded):
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls
        told += [choice.finish_reason, call.function.parsed_arguments]
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    said = called.choices[0].message.to_dict()
    answer = await now(completions.create(**asked, messages=[*messages, said, result]))
    raw = await now(client.completions.create(model="any", prompt=RAW, logprobs=1))
    return [*told, answer.choices[0].message.content, raw.choices[0].text]


@every_way
async def test_chat(how: str, server: Server) -> None:
    called = ["tool_calls", PARIS]
    told = await in_way(how, openai, server.url, chat)
    assert told == [ADA, ADA, *called, *called, FINAL, "Hi"]


# --- messages ---


async def messages(client: Client) -> list[Any]:
    asked: dict[str, Any] = {"model": "any", "max_tokens": 500}
    form = {"messages": [user(PERSON)], "output_format": Person}
    parsed = await now(client.messages.parse(**asked, **form))
    async with entered(client.messages.stream(**asked, **form)) as stream:
        folded = await now(stream.get_final_message())
    told: list[Any] = [answer.parsed_output for answer in (parsed, folded)]

    tool = {"name": "GetWeather", "input_schema": GetWeather.model_json_schema()}
    history = [user(THINKING)]
    async with entered(client.messages.stream(**asked, tools=[tool], messages=history)) as stream:
        called = await now(stream.get_final_message())
    thought, call = called.content
    told += [thought.thinking, called.stop_reason, call.input]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
    history += [{"role": "assistant", "content": called.content}, user([result])]  # type: ignore[arg-type] # content may be blocks
    counted = await now(client.messages.count_tokens(model="any", tools=[tool], messages=history))
    answer = await now(client.messages.create(**asked, tools=[tool], messages=history))
    assert answer.usage.input_tokens == counted.input_tokens
    return [*told, answer.content[0].text]


async def run_tools(client: Client) -> list[str]:
    """By the client's own loop, with answers whole and as streams."""
    asked: dict[str, Any] = {"model": "any", "max_tokens": 500, "messages": [user(CALL)]}
    name, description = "GetWeather", "The weather in a city."

    def get_weather(city: str, unit: str) -> str:
        assert (city, unit) == ("Paris", "celsius")
        return "21 degrees"

    async def get_weather_async(city: str, unit: str) -> str:
        return get_weather(city, unit)

    tool: Any = (
        beta_tool(get_weather, name=name, description=description)
        if isinstance(client, anthropic.Anthropic)
        else beta_async_tool(get_weather_async, name=name, description=description)
    )
    runners = [
        client.beta.messages.tool_runner(**asked, tools=[tool], stream=stream)
        for stream in (False, True)
    ]
    return [(await now(runner.until_done())).content[0].text for runner in runners]


@every_way
async def test_messages(how: str, server: Server) -> None:
    called = ["Paris, then.", "tool_use", PARIS.model_dump()]
    assert await in_way(how, anthropic, server.url, messages) == [ADA, ADA, *called, FINAL]


@every_way
async def test_the_tool_runner(how: str, server: Server) -> None:
    assert await in_way(how, anthropic, server.url, run_tools) == [FINAL, FINAL]


# --- responses ---


async def responses(client: Client) -> list[Any]:
    made = client.responses
    form: dict[str, Any] = {"model": "any", "input": PERSON, "text_format": Person}
    parsed = await now(made.parse(**form))
    async with entered(made.stream(**form)) as stream:
        folded = await now(stream.get_final_response())
    told: list[Any] = [answer.output_parsed for answer in (parsed, folded)]

    tool = openai.pydantic_function_tool(GetWeather)["function"]
    asked: dict[str, Any] = {"model": "any", "tools": [{"type": "function", **tool}]}
    history = [user(THINKING)]
    async with entered(made.stream(**asked, input=history)) as stream:
        called = await now(stream.get_final_response())
    thought, call = called.output
    told += [thought.content[0].text, call.status, json.loads(call.arguments)]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    stored = await now(made.create(**asked, input=[result], previous_response_id=called.id))
    told.append(stored.output_text)
    whole = [*history, *(item.to_dict() for item in called.output), result]
    answer = await now(made.create(**asked, input=whole, store=False))
    assert answer.usage.input_tokens == stored.usage.input_tokens
    assert await now(made.retrieve(stored.id)) == stored
    (kept,) = (await now(made.input_items.list(stored.id))).data
    assert (kept.call_id, kept.output) == (call.call_id, "21 degrees")
    return [*told, answer.output_text]


@every_way
async def test_responses(how: str, server: Server) -> None:
    called = ["Paris, then.", "completed", PARIS.model_dump()]
    told = await in_way(how, openai, server.url, responses)
    assert told == [ADA, ADA, *called, FINAL, FINAL]
