"""Each endpoint's whole path, interrupted once at every step that any of its tasks takes.

Connection, exchange and engine are the real ones; the client is at the other end of a memory
stream. Steps are counted by a Trio instrument, and the run is repeated with the interruption one
step later each time, until the path ends before it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from dialects import DIALECTS
from matrix import request_lines
from serving import repeating

from ds4trio.config import Settings
from ds4trio.server.app import STATE_KEY
from ds4trio.server.connection import ConnectionLimits, serve_connection
from ds4trio.server.record import Outcome
from ds4trio.server.routes import Routes
from ds4trio.server.serve import make_state
from ds4trio.testing import ScriptedModel, open_scripted_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ds4trio.server.state import ServerState

    Interrupt = Callable[[trio.CancelScope, trio.StapledStream[Any, Any], ServerState], None]

ID = "the-one"


def wire(method: str, path: str, fields: object = None) -> bytes:
    body = b"" if fields is None else json.dumps(fields).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"x-request-id: {ID}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _endpoints() -> dict[str, bytes]:
    found = {
        "health": wire("GET", "/health"),
        "ready": wire("GET", "/ready"),
        "models": wire("GET", "/v1/models"),
        "metrics": wire("GET", "/metrics"),
        "nowhere": wire("GET", "/nowhere"),
        "cancel": wire("POST", "/v1/requests/unknown/cancel"),
    }
    for dialect in DIALECTS:
        for stream in (False, True):
            fields = dialect.fields("Hi", stream=stream, max_tokens=3)
            found[f"{dialect.name}-{'stream' if stream else 'whole'}"] = wire(
                "POST", dialect.path, fields
            )
    return found


ENDPOINTS = _endpoints()


def cancelled(
    scope: trio.CancelScope, _client: trio.StapledStream[Any, Any], _state: ServerState
) -> None:
    """The server around it is."""
    scope.cancel()


def left(
    _scope: trio.CancelScope, client: trio.StapledStream[Any, Any], _state: ServerState
) -> None:
    """By its client."""
    client.send_stream.close()
    client.receive_stream.close()


def ended_on_demand(
    _scope: trio.CancelScope, _client: trio.StapledStream[Any, Any], state: ServerState
) -> None:
    if exchange := state.live.get(ID):
        exchange.end(Outcome.CANCELLED)


def unreadable(
    _scope: trio.CancelScope, client: trio.StapledStream[Any, Any], _state: ServerState
) -> None:
    """From now on every write fails, and nothing else tells that the client has gone."""
    client.receive_stream.close()


def shut_down(
    _scope: trio.CancelScope, _client: trio.StapledStream[Any, Any], state: ServerState
) -> None:
    """And drained."""
    state.stopping.set()
    for exchange in list(state.live.values()):
        exchange.end(Outcome.SHUTDOWN)


class AtStep(trio.abc.Instrument):
    """Calls ``act`` before the n-th step of any task but the one that made it."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.left = step
        self._act = act
        self._outsider = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._outsider:
            self.left -= 1
            if self.left == 0:
                self._act()


async def talk(client: trio.StapledStream[Any, Any], data: bytes) -> None:
    """Ask in two pieces, and read to the end."""
    try:
        await client.send_all(data[:60])
        await client.send_all(data[60:])
        while await client.receive_some():
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


INTERRUPTS: list[Interrupt] = [cancelled, left, ended_on_demand, unreadable, shut_down]


@pytest.mark.parametrize("interrupt", INTERRUPTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_interrupted_at_every_step(endpoint: str, interrupt: Interrupt) -> None:
    """No leak, no hang, nothing but Cancelled, and one line that says how it ended."""
    model = ScriptedModel(repeating)
    state = make_state(Settings(prefill_chunk_tokens=16))
    routes: Any = Routes(state)  # its messages are plain dicts

    async def interrupted_at(step: int) -> bool:
        """Whether the path was that long."""
        client, theirs = trio.testing.memory_stream_pair()
        state.stopping = trio.Event()
        async with trio.open_nursery() as clients:
            with trio.CancelScope() as scope:
                instrument = AtStep(step, lambda: interrupt(scope, client, state))
                trio.lowlevel.add_instrument(instrument)
                clients.start_soon(talk, client, ENDPOINTS[endpoint])
                await serve_connection(
                    routes,
                    theirs,
                    limits=ConnectionLimits(),
                    state={STATE_KEY: state},
                    draining=trio.Event(),
                )
            trio.lowlevel.remove_instrument(instrument)
        return instrument.left <= 0

    with request_lines() as lines:
        async with open_scripted_engine(model) as state.service:
            assert state.service is not None
            stats = state.service.engine.stats
            baseline = trio.lowlevel.current_statistics().tasks_living
            step = 1
            while await interrupted_at(step):
                assert not state.live
                assert (stats.running, stats.waiting) == (0, 0)
                assert trio.lowlevel.current_statistics().tasks_living == baseline
                step += 1
            assert not model.live_states
            async with state.service.complete("Hi", max_tokens=2) as reply:
                assert len(await reply.text()) == 2
    assert step > 5
    assert len(lines.requests) <= step
    assert all(line["outcome"] != "failed" for line in lines.requests)
    assert not lines.complaints
