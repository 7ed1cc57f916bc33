"""``GET /v1/engine``: who is being computed for, and how it goes. Never holds any text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec

from ds4trio.engine.stats import EngineStats
from ds4trio.server.record import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ds4trio.engine.messages import KvFigures
    from ds4trio.engine.progress import SequenceProgress
    from ds4trio.server.exchange import Exchange
    from ds4trio.server.record import RequestRecord
    from ds4trio.server.state import ServerState


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One answer under way. Units: tokens; seconds since the request's first byte.

    ``cached_prompt_tokens`` were found in ``prefix_source`` (memory, disk). ``tokens_per_second``
    is the mean of its present phase: of its prompt, or of its answer.
    ``ending``: its client has left, and the worker is about to let go.
    """

    request_id: str
    choice: int
    protocol: str
    key: str | None
    phase: str
    prompt_tokens: int | None
    prompt_tokens_done: int
    cached_prompt_tokens: int
    prefix_source: str | None
    generated_tokens: int
    max_tokens: int | None
    tokens_per_second: float | None
    age_s: float
    ending: bool


@dataclass(frozen=True, slots=True)
class EndedView:
    """One request that is over. ``release_s``: from knowing that its client was gone until the
    worker had let go; None if it ended by itself."""

    request_id: str
    protocol: str
    key: str | None
    outcome: str
    phase: str
    prompt_tokens: int
    cached_prompt_tokens: int
    prefix_source: str | None
    generated_tokens: int
    wasted_tokens: int
    release_s: float | None
    ended_s_ago: float


@dataclass(frozen=True, slots=True)
class EngineView:
    """``state``: ready, loading, draining or failed. ``totals`` count since the start (see
    `EngineStats`), ``kv`` is the memory of sequences and of kept prefixes. ``tokens_per_second`` is
    that of all answers being written together."""

    model: str | None
    state: str
    context_tokens: int | None
    max_running: int | None
    running: int
    waiting: int
    tokens_per_second: float
    totals: dict[str, int]
    kv: KvFigures
    sequences: list[SequenceView]
    ended: list[EndedView]


def render(state: ServerState, now: float) -> bytes:
    """The view as JSON. ``now`` is ``time.perf_counter()``."""
    return msgspec.json.encode(engine_view(state, now))


def engine_view(state: ServerState, now: float) -> EngineView:
    service = state.service
    engine = service.engine if service else None
    stats = engine.stats if engine else EngineStats()
    totals = asdict(stats)
    for of_now in ("running", "waiting", "kv"):
        del totals[of_now]
    sequences = [view for exchange in state.live.values() for view in _sequences(exchange, now)]
    speeds = [one.tokens_per_second or 0.0 for one in sequences if one.phase == Phase.DECODE]
    return EngineView(
        model=service.name if service else None,
        state=_condition(state),
        context_tokens=engine.context_tokens if engine else None,
        max_running=engine.max_running if engine else None,
        running=stats.running,
        waiting=stats.waiting,
        tokens_per_second=sum(speeds),
        totals=totals,
        kv=stats.kv,
        sequences=sequences,
        ended=[_ended(record, now) for record in state.ended],
    )


def _condition(state: ServerState) -> str:
    if state.failure is not None:
        return "failed"
    if state.draining:
        return "draining"
    return "loading" if state.service is None else "ready"


def _sequences(exchange: Exchange, now: float) -> Iterator[SequenceView]:
    sequences = exchange.sequences
    if sequences is None and exchange.record.phase is Phase.TOKENIZE:
        yield _sequence(exchange.record, 0, None, now)
    for choice, progress in sequences or ():
        yield _sequence(exchange.record, choice, progress, now)


def _sequence(
    record: RequestRecord, choice: int, progress: SequenceProgress | None, now: float
) -> SequenceView:
    return SequenceView(
        request_id=record.request_id,
        choice=choice,
        protocol=record.protocol,
        key=record.key,
        phase=progress.phase if progress else record.phase,
        prompt_tokens=progress.prompt_tokens if progress else None,
        prompt_tokens_done=progress.prompt_done if progress else 0,
        cached_prompt_tokens=progress.cached_prompt_tokens if progress else 0,
        prefix_source=progress.cached_from if progress else None,
        generated_tokens=progress.generated_tokens if progress else 0,
        max_tokens=progress.max_tokens if progress else None,
        tokens_per_second=progress.tokens_per_second(now) if progress else None,
        age_s=now - record.started_at,
        ending=progress.ending if progress else False,
    )


def _ended(record: RequestRecord, now: float) -> EndedView:
    assert record.outcome is not None
    assert record.ended_at is not None
    return EndedView(
        request_id=record.request_id,
        protocol=record.protocol,
        key=record.key,
        outcome=record.outcome,
        phase=record.phase,
        prompt_tokens=record.prompt_tokens,
        cached_prompt_tokens=record.cached_prompt_tokens,
        prefix_source=record.cached_from,
        generated_tokens=record.generated_tokens,
        wasted_tokens=record.wasted_tokens,
        release_s=record.release_s,
        ended_s_ago=now - record.ended_at,
    )
