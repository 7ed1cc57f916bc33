"""One streamed answer of any OpenAI-compatible server, and the times at which its pieces came."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import trio

from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ds4trio.bench.client import Connection, Target

PATH = "/v1/completions"
#: A token each, with the space before it, in every vocabulary that was made of English.
WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line"
)


def prompt(tokens: int, seed: str) -> str:
    """About so many tokens of nonsense, its own from the first word on for each ``seed``: nothing
    that a server kept of another prompt helps with it."""
    return " ".join(random.Random(seed).choices(WORDS.split(), k=tokens))


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds from sending the request: ``arrived`` has one for each piece of text, in order.

    Tokens are counted by the server; by us, a piece for a token, only if it does not say.
    """

    prompt_tokens: int
    tokens: int
    arrived: tuple[float, ...]
    ended_s: float

    @property
    def first_s(self) -> float:
        """Time to first token."""
        return self.arrived[0] if self.arrived else self.ended_s

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [later - earlier for earlier, later in pairwise(self.arrived)]


async def ask(target: Target, model: str, text: str, max_tokens: int) -> Answer:
    """Continue a text, greedily, to ``max_tokens``. Raises: ConfigError for what is no answer."""
    body = {
        "model": model,
        "prompt": text,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with await target.connect() as connection:
        began = trio.current_time()
        await connection.send("POST", PATH, body)
        arrived: list[float] = []
        usage: dict[str, int] = {}
        async for event in _events(connection):
            if any(choice.get("text") for choice in event.get("choices", ())):
                arrived.append(trio.current_time() - began)
            usage = event.get("usage") or usage
        ended_s = trio.current_time() - began
    return Answer(
        usage.get("prompt_tokens", len(text.split())),
        usage.get("completion_tokens", len(arrived)),
        tuple(arrived),
        ended_s,
    )


async def first_model(target: Target) -> str:
    """What the server calls what it serves. Raises: OSError, ConfigError."""
    try:
        return str(json.loads(await target.get("/v1/models"))["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"{target.url}: /v1/models lists no model") from None


async def _events(connection: Connection) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each event, as it arrives. Raises: ConfigError."""
    buffer = b""
    while (piece := await connection.read()) is not None:
        buffer += piece
        *whole, buffer = buffer.replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            data = event.partition(b"data: ")[2]
            if data and data != b"[DONE]":
                said = json.loads(data)
                if "error" in said:
                    raise ConfigError(f"the server failed: {data.decode(errors='replace')}")
                yield said
    if connection.status != 200:
        text = buffer.decode(errors="replace").strip()
        raise ConfigError(f"the server answered {connection.status}: {text}")
