"""A request from its body to its last byte, over real sockets, in every protocol."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import trio
from dialects import (
    DIALECTS,
    Dialect,
    ask,
    every_dialect,
    prompt_tokens,
    requests_total,
    whole_or_stream,
)
from serving import headers, saying, serving, until

from ds4trio.protocols.table import PROTOCOLS
from ds4trio.testing import END_ID

#: Each character outside ASCII is several tokens of the scripted engine.
TRICKY = 'Grüße, 世界 😀!\n"quoted" \\ and \u2028 a tab\t, a NUL \x00 and </script>'


def test_every_protocol_is_tested() -> None:
    assert {dialect.path for dialect in DIALECTS} == PROTOCOLS.keys()


@every_dialect
@whole_or_stream
async def test_exact_text_and_usage(dialect: Dialect, stream: bool) -> None:
    async with serving(saying(TRICKY, END_ID)) as server:
        answer = await ask(server, dialect, stream=stream, max_tokens=200)
    generated = len(TRICKY.encode())
    assert answer.text == TRICKY
    assert answer.finish == "stop"
    assert answer.prompt_tokens == prompt_tokens("Hi")
    assert answer.generated_tokens == generated
    assert len(answer.ids) == 1


@every_dialect
@whole_or_stream
async def test_nothing_at_all_is_an_answer(dialect: Dialect, stream: bool) -> None:
    async with serving(saying("", END_ID)) as server:
        answer = await ask(server, dialect, stream=stream)
    assert (answer.text, answer.finish) == ("", "stop")
    assert answer.generated_tokens == 0


@every_dialect
@whole_or_stream
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["</END>"], "one two </EN three "),
        (["</END>", "two"], "one "),
        ("o", ""),
        (["three </E", "hree"], "one two </EN t"),
        (["not there"], "one two </EN three </END> four"),
        (["our", "four"], "one two </EN three </END> "),
    ],
)
async def test_stop_strings_end_the_text_before_them(
    dialect: Dialect, stream: bool, stop: str | list[str], text: str
) -> None:
    """A token is one byte here, so that every stop string spans several."""
    script = saying("one two </EN three </END> four", END_ID)
    async with serving(script) as server:
        answer = await ask(server, dialect, stream=stream, stop=stop, max_tokens=100)
        await server.idle()
        assert not server.model.live_states
    assert (answer.text, answer.finish) == (text, "stop")


@every_dialect
@whole_or_stream
async def test_a_stop_string_ends_the_work(dialect: Dialect, stream: bool) -> None:
    async with serving(saying("ab.cd" * 1000, END_ID)) as server:
        await ask(server, dialect, stream=stream, stop=".", max_tokens=4000)
        forwards = len(server.model.forwards)
        await server.idle()
        figures = await server.metrics()
    # The window that a sequence may run ahead of its reader, and the prompt.
    assert forwards <= 1 + 3 + 64
    assert figures["ds4trio_wasted_generated_tokens_total"] == 0


@every_dialect
@whole_or_stream
async def test_max_tokens_cuts(dialect: Dialect, stream: bool) -> None:
    async with serving() as server:
        answer = await ask(server, dialect, "abc", stream=stream, max_tokens=7)
        forwards = len(server.model.forwards)
    assert (answer.text, answer.finish) == ("abcabca", "length")
    assert answer.generated_tokens == 7
    assert forwards == 7


@every_dialect
@whole_or_stream
async def test_a_character_cut_in_two_becomes_one_mark(dialect: Dialect, stream: bool) -> None:
    async with serving(saying("é€", END_ID)) as server:
        answer = await ask(server, dialect, stream=stream, max_tokens=3)
    assert (answer.text, answer.finish) == ("é\N{REPLACEMENT CHARACTER}", "length")


@every_dialect
@whole_or_stream
async def test_more_tokens_than_fit_are_cut_to_what_fits(dialect: Dialect, stream: bool) -> None:
    room = 10
    async with serving(context_tokens=prompt_tokens("Hi") + room) as server:
        answer = await ask(server, dialect, stream=stream, max_tokens=32000)
    assert (answer.text, answer.finish) == ("HiHiHiHiHi", "length")
    assert answer.generated_tokens == room


@every_dialect
@whole_or_stream
@pytest.mark.parametrize("spare", [0, -1, -20])
async def test_a_prompt_that_fills_the_context(dialect: Dialect, stream: bool, spare: int) -> None:
    context = prompt_tokens("Hi") + spare
    async with serving(context_tokens=context) as server:
        async with await server.connect() as client:
            await client.post(dialect.path, dialect.fields("Hi", stream=stream))
            status, body = await client.json()
        assert not server.model.forwards
        figures = await server.metrics()
    assert status == 400
    assert body["error"].get("code", "context_length_exceeded") == "context_length_exceeded"
    assert body["error"].get("param", dialect.prompt_param) == dialect.prompt_param
    # Messages speaks of the prompt's maximum, which leaves one token for the answer.
    assert str(context - (dialect.name == "messages")) in body["error"]["message"]
    assert str(prompt_tokens("Hi")) in body["error"]["message"]
    assert figures[requests_total(dialect, stream, "rejected")] == 1


@every_dialect
@whole_or_stream
async def test_any_model_name_is_echoed(dialect: Dialect, stream: bool) -> None:
    async with serving(saying("Hi", END_ID), served_model_name="ours") as server:
        named = await ask(server, dialect, stream=stream, model="gpt-5.5")
        unnamed = await ask(server, dialect, stream=stream)
    assert (named.models, unnamed.models) == ({"gpt-5.5"}, {"ours"})


@every_dialect
@whole_or_stream
async def test_strict_model_name(dialect: Dialect, stream: bool) -> None:
    async with serving(
        saying("Hi", END_ID), served_model_name="ours", strict_model_name=True
    ) as server:
        assert (await ask(server, dialect, stream=stream, model="ours")).text == "Hi"
        assert (await ask(server, dialect, stream=stream)).text == "Hi"
        async with await server.connect() as client:
            await client.post(dialect.path, dialect.fields("Hi", stream=stream, model="theirs"))
            status, body = await client.json()
    assert status == 404
    assert body["error"].get("code", "model_not_found") == "model_not_found"
    assert "theirs" in body["error"]["message"]


@every_dialect
async def test_the_stream_is_one_for_browsers_and_proxies(dialect: Dialect) -> None:
    async with serving(saying("Hi", END_ID)) as server, await server.connect() as client:
        await client.post(dialect.path, dialect.fields("Hi", stream=True))
        head = headers(await client.head())
    assert head["content-type"].partition(";")[0] == "text/event-stream"
    assert head["cache-control"] == "no-cache"
    assert head["x-accel-buffering"] == "no"
    assert "content-length" not in head


@every_dialect
async def test_a_token_is_told_as_it_comes(dialect: Dialect) -> None:
    async with serving(gated=True) as server, await server.connect() as client:
        await client.post(dialect.path, dialect.fields("abc", stream=True, max_tokens=3))
        await client.head()
        for forward, letter in enumerate("abc", start=1):
            await server.gate.reached(forward)
            server.gate.release()
            await client.read_until(partial(_says, dialect, letter))
        await client.rest()


def _says(dialect: Dialect, text: str, body: bytes) -> bool:
    return dialect.text_so_far(body) == text


@whole_or_stream
async def test_keep_alive_serves_one_after_another(stream: bool) -> None:
    async with serving(saying("Hi", END_ID)) as server, await server.connect() as client:
        for dialect in DIALECTS * 3:
            await client.post(dialect.path, dialect.fields("Hi", stream=stream))
            _, body = await client.response()
            assert dialect.read(body, stream=stream).text == "Hi"
            client.again()


@every_dialect
@whole_or_stream
async def test_figures_and_one_line_without_the_text(
    dialect: Dialect, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(saying("SECRETANSWER", END_ID)) as server, await server.connect() as client:
        fields = dialect.fields("SECRETPROMPT", stream=stream)
        await client.post(dialect.path, fields, {"x-request-id": "mine"})
        await client.response()
        await server.idle()
        figures = await server.metrics()
    (line,) = [r for r in caplog.records if r.name == "ds4trio.request"]
    said: dict[str, Any] = line.__dict__["fields"]
    prompt, generated = prompt_tokens("SECRETPROMPT"), len("SECRETANSWER")
    assert said["id"] == "mine"
    assert said["protocol"] == dialect.name
    assert said["stream"] is stream
    assert (said["outcome"], said["phase"], said["status"]) == ("completed", "write", 200)
    assert (said["prompt_tokens"], said["generated_tokens"]) == (prompt, generated)
    assert "SECRET" not in caplog.text
    assert figures[requests_total(dialect, stream, "completed")] == 1
    assert figures["ds4trio_prompt_tokens_total"] == prompt
    assert figures["ds4trio_generated_tokens_total"] == generated
    assert figures["ds4trio_wasted_prompt_tokens_total"] == 0
    assert figures["ds4trio_wasted_generated_tokens_total"] == 0
    # One for the prompt, one for each token after the first, and the end.
    assert figures["ds4trio_engine_steps_total"] == generated + 1
    assert figures["ds4trio_time_to_first_token_seconds_count"] == 1
    assert figures["ds4trio_inter_token_seconds_count"] == generated - 1
    assert figures["ds4trio_queue_seconds_count"] == 1
    assert figures['ds4trio_sequences{state="running"}'] == 0
    assert figures['ds4trio_sequences{state="waiting"}'] == 0


async def test_eight_streams_are_one_batch() -> None:
    tokens = 60
    texts: dict[str, str] = {}
    async with serving(max_running=8, gated=True) as server:

        async def read(said: str, dialect: Dialect) -> None:
            answer = await ask(server, dialect, said, stream=True, max_tokens=tokens)
            texts[said] = answer.text

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(read, f"stream {number}; ", DIALECTS[number % len(DIALECTS)])
            await server.gate.reached(1)
            stats = server.engine.engine.stats
            await until(lambda: stats.waiting + stats.running == 8)
            server.gate.open()
        figures = await server.metrics()
    assert texts == {
        said: (said * tokens)[:tokens] for said in (f"stream {number}; " for number in range(8))
    }
    assert figures["ds4trio_generated_tokens_total"] == 8 * tokens
    # All eight prompts fit into three chunks.
    assert figures["ds4trio_engine_steps_total"] <= tokens + 4


async def test_a_token_that_does_not_exist_is_refused_alone() -> None:
    async with serving() as server:
        async with await server.connect() as client:
            await client.post("/v1/completions", {"prompt": [99999]})
            status, body = await client.json()
        assert status == 400
        assert "token ids" in body["error"]["message"]
        assert (await ask(server, DIALECTS[0], stream=True, max_tokens=4)).text == "HiHi"
