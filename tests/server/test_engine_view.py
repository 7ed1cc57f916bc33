"""``GET /v1/engine`` says who is being computed for, and forgets who has left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from serving import serving

from ds4trio.engine.job import PrefillProgress, TokenEvent
from ds4trio.engine.progress import SequenceProgress

if TYPE_CHECKING:
    from pathlib import Path

    from serving import Server

CHAT = "/v1/chat/completions"


def asking(text: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "stream": True, **fields}


async def view(server: Server, **head: str) -> Any:  # noqa: ANN401 - JSON
    async with await server.connect() as client:
        await client.request("GET", "/v1/engine", headers=head)
        status, said = await client.json()
        assert status == 200
        return said


async def test_each_sequence_in_its_phase() -> None:
    """Prompts of 23 tokens in chunks of 16, the gate held in each forward."""
    async with serving(gated=True, prefill_chunk_tokens=16, max_running=1) as server:
        first, second = await server.connect(), await server.connect()
        await first.post(CHAT, asking("ab", max_tokens=30), {"x-request-id": "first"})
        await server.gate.reached(1)
        await second.post(CHAT, asking("secret", n=2), {"x-request-id": "second"})
        said = await view(server)
        while len(said["sequences"]) < 3:
            said = await view(server)
        one, *others = said["sequences"]
        assert (said["state"], said["model"], said["max_running"]) == ("ready", "scripted", 1)
        assert (said["running"], said["waiting"]) == (1, 2)
        prompt = len("user: ab\nassistant: ") + 1
        assert (one["request_id"], one["choice"], one["protocol"]) == ("first", 0, "chat")
        assert (one["phase"], one["prompt_tokens"], one["prompt_tokens_done"]) == (
            "prefill",
            prompt,
            0,
        )
        assert one["key"] is None
        assert one["age_s"] > 0
        assert [(other["request_id"], other["choice"]) for other in others] == [
            ("second", 0),
            ("second", 1),
        ]
        assert {other["phase"] for other in others} == {"queue"}

        server.gate.release()
        await server.gate.reached(2)
        (one, *_) = (await view(server))["sequences"]
        assert (one["phase"], one["prompt_tokens_done"]) == ("prefill", 16)
        assert one["tokens_per_second"] > 0

        server.gate.release(3)
        await server.gate.reached(5)
        said = await view(server)
        (one, *_) = said["sequences"]
        assert (one["phase"], one["generated_tokens"], one["max_tokens"]) == ("decode", 3, 30)
        assert said["tokens_per_second"] == one["tokens_per_second"] > 0
        assert said["totals"]["generated_tokens"] == 3
        assert "secret" not in json.dumps(said)

        await second.rst()
        await first.rst()
        while not (await view(server))["sequences"][0]["ending"]:
            pass
        server.gate.open()
        await server.idle()
        said = await view(server)
        assert said["sequences"] == []
        assert (said["running"], said["waiting"]) == (0, 0)
        ended = {one["request_id"]: one for one in said["ended"]}
        assert ended["first"]["outcome"] == "client_gone"
        assert (ended["first"]["phase"], ended["first"]["generated_tokens"]) == ("decode", 3)
        assert ended["first"]["wasted_tokens"] == 1  # what the gate held
        assert ended["first"]["release_s"] > 0
        assert (ended["second"]["phase"], ended["second"]["wasted_tokens"]) == ("queue", 0)


async def test_where_a_prompt_was_found_and_what_it_takes() -> None:
    async with serving(prefix_cache=True) as server:
        text = "the same again " * 10
        async with await server.connect() as client:
            await client.post(CHAT, asking(text, max_tokens=1))
            await client.response()
        await server.idle()
        server.gate.shut()
        forward = server.gate.entered + 1
        second = await server.connect()
        await second.post(CHAT, asking(text))
        await server.gate.reached(forward)
        said = await view(server)
        (one,) = said["sequences"]
        assert one["prefix_source"] == "memory"
        assert 0 < one["cached_prompt_tokens"] <= one["prompt_tokens_done"] < one["prompt_tokens"]
        assert said["ended"][0]["prefix_source"] is None
        assert said["kv"]["running_bytes"] > 0
        assert said["kv"]["cached_bytes"] > 0


async def test_keys_have_names_and_the_view_may_have_its_own(tmp_path: Path) -> None:
    keys, metrics = tmp_path / "keys", tmp_path / "metrics"
    keys.write_text("sk-a\nsk-b\n")
    metrics.write_text("sk-m\n")
    bearer = {name: {"authorization": f"Bearer sk-{name}"} for name in "abm"}
    async with serving(api_keys_file=keys, metrics_keys_file=metrics, gated=True) as server:
        client = await server.connect()
        await client.post(CHAT, asking("Hi"), bearer["b"])
        await server.gate.reached(1)
        said = await view(server, **bearer["m"])
        assert [one["key"] for one in said["sequences"]] == ["key-2"]
        assert "sk-" not in json.dumps(said)
        for path, wrong in (
            ("/v1/engine", "a"),
            ("/metrics", "a"),
            (CHAT, "m"),
            ("/v1/models", "m"),
        ):
            async with await server.connect() as other:
                method = "POST" if path == CHAT else "GET"
                await other.request(method, path, headers=bearer[wrong])
                assert (await other.response())[0] == 401
    async with serving(api_keys_file=keys) as server:
        await view(server, **bearer["a"])
    async with serving(metrics_keys_file=metrics) as server, await server.connect() as client:
        await client.request("GET", "/v1/engine")
        assert (await client.response())[0] == 401


def test_the_speed_is_that_of_the_phase() -> None:
    progress = SequenceProgress(prompt_tokens=300, max_tokens=10)
    assert (progress.phase, progress.tokens_per_second(100.0)) == ("queue", None)
    progress.note(PrefillProgress(100, 300, cached=100, cached_from="memory"))
    progress.admitted_at = 100.0
    assert (progress.phase, progress.tokens_per_second(101.0)) == ("prefill", None)
    progress.note(PrefillProgress(200, 300, cached=100, cached_from="memory"))
    assert progress.tokens_per_second(104.0) == pytest.approx(25.0)
    assert progress.cached_prompt_tokens == 100
    progress.note(TokenEvent(1, 110.0))
    assert (progress.phase, progress.tokens_per_second(111.0)) == ("decode", None)
    for at in (111.0, 112.0):
        progress.note(TokenEvent(1, at))
    assert progress.tokens_per_second(114.0) == pytest.approx(0.5)
