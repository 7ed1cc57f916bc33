"""What was reused of a prompt is told: in each protocol's usage, in the metrics, in the log."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING

import pytest
from dialects import Dialect, every_dialect
from serving import ANSWER_MARK, Server, serving

if TYPE_CHECKING:
    from collections.abc import Mapping

SAID = "Say this again, and again."
#: With the token that begins every text.
PROMPT_TOKENS = 1 + len(f"user: {SAID}\n") + len(ANSWER_MARK)


def cached_tokens(body: bytes) -> int:
    """By OpenAI's name or Anthropic's, as it was said last."""
    found = re.findall(rb'"(?:cached_tokens|cache_read_input_tokens)": ?(\d+)', body)
    return int(found[-1])


async def answer(server: Server, dialect: Dialect, *, stream: bool) -> bytes:
    async with await server.connect() as client:
        await client.post(dialect.path, dialect.fields(SAID, stream=stream, max_tokens=5))
        status, body = await client.response()
        assert status == 200, body
        dialect.read(body, stream=stream)
        return body


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_usage_metrics_and_log_line(
    dialect: Dialect, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(prefix_cache=True, kv_budget_bytes=1 << 20) as server:
        with caplog.at_level(logging.INFO, logger="ds4trio.request"):
            first = await answer(server, dialect, stream=stream)
            second = await answer(server, dialect, stream=stream)
            await server.idle()
        told = await server.metrics()
    reused = PROMPT_TOKENS - 1
    assert (cached_tokens(first), cached_tokens(second)) == (0, reused)
    assert told["ds4trio_cached_prompt_tokens_total"] == reused
    assert told["ds4trio_prompt_tokens_total"] == 2 * PROMPT_TOKENS
    assert told['ds4trio_prefix_cache_hits_total{source="memory"}'] == 1
    assert told["ds4trio_prefix_cache_misses_total"] == 1
    assert told['ds4trio_kv_bytes{state="budget"}'] == 1 << 20
    assert told['ds4trio_kv_bytes{state="running"}'] == 0
    assert told['ds4trio_kv_bytes{state="cached"}'] == 8 * (PROMPT_TOKENS + 4)
    lines: list[Mapping[str, object]] = [record.fields for record in caplog.records]  # type: ignore[attr-defined]  # see logs.FIELDS
    assert [line["cached_prompt_tokens"] for line in lines] == [0, reused]
    assert [line.get("cached_from") for line in lines] == [None, "memory"]


@every_dialect
async def test_a_prompt_beyond_the_memory_is_refused_at_once(dialect: Dialect) -> None:
    async with serving(kv_budget_bytes=8 * 30) as server, await server.connect() as client:
        await client.post(dialect.path, dialect.fields(SAID, stream=True))
        status, body = await client.response()
        assert status == 400
        assert f"{8 * (PROMPT_TOKENS + 1)} bytes" in json.dumps(json.loads(body))
        assert f"{8 * 30} bytes" in json.dumps(json.loads(body))
        assert not server.model.forwards
