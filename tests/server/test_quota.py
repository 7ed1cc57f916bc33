"""What a key may take: rules by hand calculation, and over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest
import trio
from dialects import DIALECTS, Dialect, every_dialect
from serving import Client, Server, serving, until

from ds4trio.errors import RateLimitError
from ds4trio.server.keys import KeyRules
from ds4trio.server.quota import Quota
from ds4trio.testing import ByteTokenizer

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_tokens_a_minute() -> None:
    """600 a minute are 10 a second."""
    clock = Clock()
    quota = Quota(KeyRules("ann", tokens_per_minute=600), clock)
    quota.check()
    quota.enter()
    quota.leave(tokens=599)
    quota.check()
    quota.enter()
    quota.leave(tokens=301)  # overdrawn by 300
    with pytest.raises(RateLimitError, match="600 tokens a minute") as caught:
        quota.check()
    assert caught.value.retry_after_s == 31  # for 301 tokens, 30.1 s
    clock.now += 30
    with pytest.raises(RateLimitError):
        quota.check()
    clock.now += 0.2
    quota.check()
    clock.now += 3600  # never more than a minute's
    quota.enter()
    quota.leave(tokens=600)
    with pytest.raises(RateLimitError):
        quota.check()


def test_requests_at_once() -> None:
    quota = Quota(KeyRules("ann", max_running=1, max_waiting=2), Clock())
    for _ in range(3):
        quota.check()
        quota.enter()
    with pytest.raises(RateLimitError, match="3 requests"):
        quota.check()
    quota.leave(tokens=10**9)
    quota.check()


def test_priority_is_for_those_who_may() -> None:
    assert Quota(KeyRules("ann", may_prioritise=True), Clock()).share(7).priority == 7
    assert Quota(KeyRules("bob"), Clock()).share(7).priority == 0


def keys_file(folder: Path) -> Path:
    file = folder / "keys"
    file.write_text("sk-ann name=ann max_running=1 max_waiting=1\nsk-bob name=bob\nsk-vip priority")
    return file


async def ask(server: Server, key: str, said: str, tokens: int, **head: str) -> Client:
    client = await server.connect()
    fields = DIALECTS[0].fields(said, stream=False, max_tokens=tokens)
    await client.post(DIALECTS[0].path, fields, {"x-api-key": key, **head})
    return client


async def test_one_key_does_not_wait_for_anothers_many(tmp_path: Path) -> None:
    """One place; bob's twenty wait before ann's one comes. Hers starts when the first ends."""
    keys = keys_file(tmp_path)
    async with serving(gated=True, max_running=1, max_waiting=30, api_keys_file=keys) as server:
        stats = server.engine.engine.stats

        async def ask_in_turn(key: str, said: str, place: int, **head: str) -> Client:
            client = await ask(server, key, said, 2, **head)
            await until(lambda: stats.running + stats.waiting == place)
            return client

        for number in range(20):
            await ask_in_turn("sk-bob", f"bob {number:2}", number + 1)
        await ask_in_turn("sk-ann", "ann", 21)
        vip = await ask_in_turn("sk-vip", "vip", 22, **{"x-priority": "1"})
        server.gate.open()
        assert (await vip.response())[0] == 200
        await server.idle()
        prompts = [bytes(rows[0].token_ids[1:]) for rows in server.model.forwards[::2]]
        assert [prompt.split(b"\n")[0] for prompt in prompts[:4]] == [
            b"user: bob  0",
            b"user: vip",
            b"user: ann",
            b"user: bob  1",
        ]


@every_dialect
async def test_a_keys_own_limit(dialect: Dialect, tmp_path: Path) -> None:
    """Of three requests, one runs, one waits, one is refused by a 429 that says when to come."""
    async with serving(gated=True, api_keys_file=keys_file(tmp_path)) as server:
        stats = server.engine.engine.stats
        for said in ("one", "two"):
            await ask(server, "sk-ann", said, 1)
        await until(lambda: (stats.running, stats.waiting) == (1, 1))
        client = await server.connect()
        fields = dialect.fields("three", stream=True, max_tokens=1)
        await client.post(dialect.path, fields, {"authorization": "Bearer sk-ann"})
        head = await client.head()
        assert head.status_code == 429
        assert int(dict(head.headers)[b"retry-after"]) >= 1
        assert b"rate_limit" in await client.rest()
        other = await ask(server, "sk-bob", "hers", 1)
        server.gate.open()
        assert (await other.response())[0] == 200


async def test_a_burst_is_refused_before_anything_is_spent() -> None:
    """300 at once, room for 10: the others are refused without a token of theirs being counted."""
    encoded: list[str] = []
    real_encode = ByteTokenizer.encode

    def encode(tokenizer: ByteTokenizer, text: str) -> list[int]:
        encoded.append(text)
        return real_encode(tokenizer, text)

    statuses: list[int] = []

    async def one(server: Server) -> None:
        async with await server.connect() as client:
            fields = {"prompt": "user: burst\nassistant: ", "max_tokens": 1}
            await client.post("/v1/completions", fields)
            statuses.append((await client.response())[0])

    with mock.patch.object(ByteTokenizer, "encode", encode):
        async with (
            serving(gated=True, max_running=2, max_waiting=8) as server,
            trio.open_nursery() as nursery,
        ):
            for _ in range(300):
                nursery.start_soon(one, server)
            await until(lambda: len(statuses) == 290)
            assert set(statuses) == {429}
            server.gate.open()
    assert sorted(statuses) == [200] * 10 + [429] * 290
    assert encoded.count("user: burst\nassistant: ") == 10
