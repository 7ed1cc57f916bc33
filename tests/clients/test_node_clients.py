"""The official clients for Node against the server, with their own helpers.

What the scripts beside this do is told by them as JSON, and judged here.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from node_clients import run_node as run_node
from serving import serving
from talking import repeat, talking, talking_format

import ds4trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from node_clients import Run
    from serving import Server

KEY = "sk-right"
#: What the scripts ask for (see `node/report.mjs`), and what they must hear.
QUESTION = "A table — 表 — of keys 😀"
ASKED_TOKENS = len(f"\x1euser: {QUESTION}\x1eassistant: ".encode())
ANSWER_TOKENS = len(QUESTION.encode())
PERSON = {"name": "Ada", "age": 36}
LEFT = {"left": "APIUserAbortError", "leftStream": "And", "leftHelper": "APIUserAbortError"}
#: Of those, the first was no stream.
LEFT_COUNTS = {"false": 1, "true": 2}


@asynccontextmanager
async def server_for_node(folder: Path) -> AsyncIterator[Server]:
    keys = folder / "keys"
    keys.write_text(KEY)
    async with serving(
        talking(repeat),
        chat_format=talking_format(),
        api_keys_file=keys,
        max_running=1,
        prefill_chunk_tokens=4096,
    ) as server:
        yield server


async def left(server: Server, protocol: str) -> dict[str, float]:
    """How many requests of a protocol were left by their clients, streams and others."""
    await server.idle()
    assert not server.model.live_states
    async with await server.connect() as client:
        await client.request("GET", "/metrics", headers={"x-api-key": KEY})
        _, body = await client.response()
    sample = f'ds4trio_requests_total{{outcome="client_gone",protocol="{protocol}",stream='
    lines = [line for line in body.decode().splitlines() if line.startswith(sample)]
    return {line.removeprefix(sample).split('"')[1]: float(line.split()[-1]) for line in lines}


def failed(name: str, status: int, message: str, **fields: object) -> dict[str, Any]:
    """An error as a script shows it: the client's class, and what the server said."""
    return {"name": name, "status": status, "id": "string", "message": message, **fields}


def openai_failures(prompt: str) -> dict[str, Any]:
    """``prompt`` is the field to blame for one that is too long."""
    overflow = (
        "400 This model's maximum context length is 4096 tokens, but the prompt has 5019 tokens, "
        "and must leave room for an answer."
    )
    invalid: dict[str, Any] = {"type": "invalid_request_error"}
    temperature = "400 temperature: expected number <= 2.0"
    key: dict[str, Any] = {"type": "authentication_error", "code": "invalid_api_key", "param": None}
    code = "context_length_exceeded"
    return {
        "invalid": failed(
            "BadRequestError", 400, temperature, code=None, param="temperature", **invalid
        ),
        "tooLong": failed("BadRequestError", 400, overflow, code=code, param=prompt, **invalid),
        "unauthorised": failed("AuthenticationError", 401, "401 A valid API key is needed.", **key),
    }


async def test_chat(run_node: Run, tmp_path: Path) -> None:
    async with server_for_node(tmp_path) as server:
        told = await run_node("chat.mjs", server.url, KEY)
        assert await left(server, "chat") == LEFT_COUNTS
    answer = {
        "object": "chat.completion",
        "index": 0,
        "role": "assistant",
        "content": QUESTION,
        "finish_reason": "stop",
        "tokens": ANSWER_TOKENS,
    }
    thoughts = {"thought": "Hm, well.", "said": "So it is."}
    tools = {
        "cities": ["Paris"],
        "final": "It is 21 degrees.",
        "roles": ["user", "assistant", "tool", "assistant"],
    }
    assert told == {
        **LEFT,
        "helper": {"said": QUESTION, "folded": answer, "whole": answer},
        "thoughts": [thoughts, thoughts],
        "parsed": [PERSON, PERSON],
        "continued": [QUESTION, QUESTION],
        "tools": tools,
        "toolsStream": tools,
        "logprobs": [["H", 2], ["i", 2]],
        "models": ["scripted"],
        "model": "scripted",
        "unknown": failed(
            "NotFoundError",
            404,
            "404 The model 'other' does not exist.",
            code="model_not_found",
            type="not_found_error",
            param=None,
        ),
        **openai_failures("messages"),
    }


async def test_messages(run_node: Run, tmp_path: Path) -> None:
    async with server_for_node(tmp_path) as server:
        told = await run_node("messages.mjs", server.url, KEY)
        assert await left(server, "messages") == LEFT_COUNTS
    answer = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": QUESTION}],
        "stop_reason": "end_turn",
        "tokens": [ASKED_TOKENS, ANSWER_TOKENS],
    }
    blocks = [
        {"type": "thinking", "thinking": "Hm, well."},
        {"type": "text", "text": "So it is."},
    ]
    tools = {"cities": ["Paris"], "stop_reason": "end_turn", "final": "It is 21 degrees."}

    def refused(name: str, status: int, kind: str, message: str) -> dict[str, Any]:
        """This client's message is the body."""
        body = f'{{"type":"error","error":{{"type":"{kind}","message":"{message}"}}}}'
        return failed(name, status, f"{status} {body}", type=kind)

    invalid = ("BadRequestError", 400, "invalid_request_error")
    key = ("AuthenticationError", 401, "authentication_error")
    assert told == {
        **LEFT,
        "helper": {"said": QUESTION, "folded": answer, "whole": answer, "counted": ASKED_TOKENS},
        "thoughts": {"thought": "Hm, well.", "blocks": [blocks, blocks], "next": "And?"},
        "parsed": [PERSON, PERSON],
        "tools": tools,
        "toolsStream": tools,
        "models": ["scripted"],
        "model": "scripted",
        "invalid": refused(*invalid, "temperature: expected number <= 2.0"),
        "tooLong": refused(*invalid, "prompt is too long: 5019 tokens > 4095 maximum"),
        "unauthorised": refused(*key, "A valid API key is needed."),
    }


async def test_responses(run_node: Run, tmp_path: Path) -> None:
    async with server_for_node(tmp_path) as server:
        told = await run_node("responses.mjs", server.url, KEY)
        assert await left(server, "responses") == LEFT_COUNTS
    answer = {
        "object": "response",
        "status": "completed",
        "output_text": QUESTION,
        "tokens": ANSWER_TOKENS,
    }
    thought = {"type": "reasoning", "output_text": "So it is."}
    plain = thought | {
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm, well."}],
    }
    summary = thought | {"summary": [{"type": "summary_text", "text": "Hm, well."}]}
    tool = {
        "type": "function_call",
        "name": "get_weather",
        "arguments": '{"city": "Paris"}',
        "status": "completed",
        "final": "It is 21 degrees.",
    }
    gone = told["kept"]["gone"]
    assert gone.pop("message").startswith("404 There is no response 'resp_")
    assert told == {
        **LEFT,
        "helper": {"said": QUESTION, "folded": answer, "whole": answer},
        "thoughts": [plain, plain],
        "summaries": [summary, summary],
        "parsed": [PERSON, PERSON],
        "tools": tool,
        "toolsKept": tool,
        "kept": {"text": QUESTION, "items": [QUESTION], "gone": gone},
        "background": {"told": QUESTION, "status": "queued", "cancelled": "cancelled"},
        **openai_failures("input"),
    }
    assert (gone["name"], gone["status"], gone["id"]) == ("NotFoundError", 404, "string")


@pytest.mark.model
async def test_the_default_model(run_node: Run, default_model: Path) -> None:
    settings = ds4trio.Settings(port=0, threads=1)
    async with (
        ds4trio.open_engine(str(default_model), settings) as engine,
        trio.open_nursery() as nursery,
    ):
        (url,) = await nursery.start(ds4trio.serve, engine, settings)
        told = await run_node("default_model.mjs", url)
        nursery.cancel_scope.cancel()
    said = told["chat"][0]
    assert len(said.split()) > 2
    assert told["chat"] == told["message"] == told["response"] == [said, said]
    assert told["tool"].startswith("It is warm in ")
    assert told["parsed"]["kind"] in ("cat", "dog")
    assert 0 <= told["parsed"]["age"] <= 30
