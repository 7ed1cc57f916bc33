"""An engine with a real worker thread, and a model that says what it is told."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.engine.engine import Engine, open_engine
from ds4trio.engine.job import EngineEvent, EngineRequest, TokenEvent, TokensEnded
from ds4trio.testing import ScriptedModel, StepGate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ds4trio.engine.stream import TokenStream


@dataclass
class Rig:
    engine: Engine
    model: ScriptedModel
    gate: StepGate

    @property
    def counts(self) -> tuple[int, int, int]:
        """What must be back at 0 when everyone has left: running, waiting, live states."""
        stats = self.engine.stats
        return stats.running, stats.waiting, len(self.model.live_states)


@asynccontextmanager
async def open_rig(
    model: ScriptedModel | None = None,
    *,
    gated: bool = False,
    max_running: int = 8,
    max_waiting: int = 128,
    prefill_chunk_tokens: int = 128,
    max_unread_tokens: int = 64,
    release_timeout_s: float = 30.0,
    kv_budget_bytes: int = 1 << 20,
    prefix_cache: bool = True,
) -> AsyncIterator[Rig]:
    """A gated rig's worker stops in each forward; the gate is opened when the block is left."""
    gate = StepGate()
    if not gated:
        gate.open()
    model = model or ScriptedModel(gate=gate)
    async with open_engine(
        lambda: model,
        max_running=max_running,
        max_waiting=max_waiting,
        prefill_chunk_tokens=prefill_chunk_tokens,
        max_unread_tokens=max_unread_tokens,
        release_timeout_s=release_timeout_s,
        kv_budget_bytes=kv_budget_bytes,
        prefix_cache=prefix_cache,
        threads=1,  # tiny tensors: more would only wait for each other on a busy machine
    ) as engine:
        with gate.opened_at_exit():
            yield Rig(engine, model, gate)


def job(first_id: int, prompt_tokens: int = 3, max_tokens: int | None = 20) -> EngineRequest:
    """Told apart in the model's records by the first token of its prompt."""
    prompt = [first_id, *range(1, prompt_tokens)]
    return EngineRequest([i % 256 for i in prompt], max_tokens=max_tokens)


async def read_all(stream: TokenStream) -> tuple[list[int], TokensEnded]:
    events = await read_events(stream)
    ended = events[-1]
    assert isinstance(ended, TokensEnded)
    return token_ids(events), ended


async def read_events(stream: TokenStream) -> list[EngineEvent]:
    """To the end."""
    events: list[EngineEvent] = []
    while not (events and isinstance(events[-1], TokensEnded)):
        events += await stream.receive()
    return events


async def read_tokens(stream: TokenStream, count: int) -> list[EngineEvent]:
    """Until so many tokens were received, or a few more."""
    events: list[EngineEvent] = []
    while len(token_ids(events)) < count:
        events += await stream.receive()
    return events


def token_ids(events: list[EngineEvent]) -> list[int]:
    return [event.token_id for event in events if isinstance(event, TokenEvent)]
