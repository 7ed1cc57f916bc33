"""What benchmarks and evaluations read of an answer: usage in every chunk, a prompt's logprobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dialects import DIALECTS, OpenAIDialect, prompt_tokens, stream_events
from serving import saying, serving

from ds4trio.testing import END_ID

OPENAI = [dialect for dialect in DIALECTS if isinstance(dialect, OpenAIDialect)]
each_openai = pytest.mark.parametrize("dialect", OPENAI, ids=lambda dialect: dialect.name)
EACH_CHUNK = {"include_usage": True, "continuous_usage_stats": True}


async def streamed(path: str, body: dict[str, Any], text: str) -> list[Any]:
    async with serving(saying(text, END_ID)) as server, await server.connect() as client:
        await client.post(path, body)
        status, answer = await client.response()
    assert status == 200, answer
    *chunks, done = [event.data for event in stream_events(answer) if not event.is_comment]
    assert done == "[DONE]"
    return chunks


@each_openai
@pytest.mark.parametrize("n", [1, 3])
async def test_each_chunk_says_what_was_taken_so_far(dialect: OpenAIDialect, n: int) -> None:
    """A token of the scripted engine is a byte, so an ASCII text is as long as its count."""
    body = dialect.ask("Hi") | {"stream": True, "stream_options": EACH_CHUNK, "n": n}
    *chunks, last = await streamed(dialect.path, body, "0123456789" * 20)
    if dialect.name == "chat":
        opening, chunks = chunks[:n], chunks[n:]
        assert [chunk["usage"] for chunk in opening] == [None] * n, "before the prompt is counted"
    most = 16 if dialect.name == "completions" else 200
    said = 0
    for chunk in chunks:
        said += sum(len(dialect.piece(choice)) for choice in chunk["choices"])
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == prompt_tokens("Hi")
        assert usage["completion_tokens"] == said
        assert usage["total_tokens"] == prompt_tokens("Hi") + said
    assert said == last["usage"]["completion_tokens"] == n * most
    assert last["choices"] == []


@each_openai
async def test_it_does_not_if_it_is_not_asked_to(dialect: OpenAIDialect) -> None:
    body = dialect.ask("Hi") | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = await streamed(dialect.path, body, "Hello")
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("logprobs", [None, 0, 1])
@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99], ["abc", "abc"]], ids=str)
async def test_a_prompt_alone(prompt: object, logprobs: int | None, stream: bool) -> None:
    """What lm-eval asks for where nothing is to be generated; it may fill the context."""
    text_begins = not (isinstance(prompt, list) and prompt[0] == 97)
    tokens = 3 + text_begins  # a text has a token before it
    body = {"prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": logprobs, "stream": stream}
    script = saying("abc", END_ID)
    async with serving(script, context_tokens=tokens) as server, await server.connect() as client:
        await client.post("/v1/completions", body)
        status, said = await client.response()
    assert status == 200, said
    if stream:
        chunks = [event.data for event in stream_events(said) if isinstance(event.data, dict)]
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["text"]]
    else:
        answer = json.loads(said)
        choices = answer["choices"]
        prompts = 2 if prompt == ["abc", "abc"] else 1
        assert {choice["finish_reason"] for choice in choices} == {"length"}
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["prompt_tokens"] == tokens * prompts
    for choice in choices:
        assert choice["text"] == "abc"
        if logprobs is None:
            assert choice["logprobs"] is None
            continue
        assert len(choice["logprobs"]["tokens"]) == tokens
        first, *rest = choice["logprobs"]["token_logprobs"]
        assert first is None
        assert all(isinstance(logprob, float) for logprob in rest)


async def test_no_tokens_of_nothing() -> None:
    async with serving(saying("abc", END_ID)) as server, await server.connect() as client:
        await client.post("/v1/completions", {"prompt": "abc", "max_tokens": 0})
        status, answer = await client.json()
    assert (status, answer["error"]["param"]) == (400, "max_tokens")
