"""Requests that come, advance and go in any order, against a simple model of who owns what.

The worker is held inside each forward, and goes on only where the walk says so. Hypothesis makes
the walks, and finds the shortest one that breaks a rule.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest import mock

import trio
import trio.testing
from dialects import DIALECTS, Dialect
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import RequestLines, request_lines
from serving import Client, Server, serving, until

from ds4trio.server.record import Outcome
from ds4trio.server.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

PLACES, QUEUE = 2, 2
ACTIONS = [
    *("submit", "submit", "step", "step"),
    *("fin", "rst", "cancel", "deadline", "shut_down"),
    *("stall", "resume", "cut"),
]


class FullSockets:
    """Clients whose sockets take nothing more, by their ports: a write waits until they do."""

    def __init__(self) -> None:
        self.full: dict[int, trio.Event] = {}
        self.waiting: dict[int, Transport] = {}

    def fill(self, port: int) -> None:
        self.full.setdefault(port, trio.Event())

    def empty(self, port: int) -> None:
        self.full.pop(port).set()

    @contextmanager
    def injected(self) -> Iterator[None]:
        real_write = Transport.write

        async def write(transport: Transport, data: bytes) -> None:
            assert transport.socket is not None
            _, port = transport.socket.getpeername()
            if port in self.full:
                self.waiting[port] = transport
                try:
                    await transport._under_deadline(trio.Event.wait, self.full[port])
                except BaseException:
                    transport.lose("closed")  # as a write does that was cut short
                    raise
                finally:
                    del self.waiting[port]
            await real_write(transport, data)

        with mock.patch.object(Transport, "write", write):
            yield


@dataclass(slots=True)
class Owner:
    """One request. ``end`` is how it must end: None as long as that is its own business."""

    name: str
    dialect: Dialect
    client: Client
    port: int
    stream: bool
    tokens: int
    end: str | None = None
    #: The last forward that may compute anything for it.
    last_forward: int | None = None

    @property
    def said(self) -> str:
        return f"{self.name} "


class Walk:
    def __init__(self, server: Server, nursery: trio.Nursery, sockets: FullSockets) -> None:
        self.server = server
        self.nursery = nursery
        self.sockets = sockets
        self.all: list[Owner] = []
        self.steps = 0
        self.draining = False

    async def act(self, action: str, number: int) -> None:
        await {
            "submit": self.submit,
            "step": self.step,
            "fin": self.leave_by(Client.fin),
            "rst": self.leave_by(Client.rst),
            "cancel": self.cancel,
            "deadline": self.deadline,
            "shut_down": self.shut_down,
            "stall": self.stall,
            "resume": self.resume,
            "cut": self.cut,
        }[action](number)
        await self.settle()
        self.check()

    async def settle(self) -> None:
        """Until nothing moves: the worker, too, is held, or has nothing to do."""
        stats = self.server.engine.engine.stats
        await trio.testing.wait_all_tasks_blocked(0.002)
        await until(
            lambda: self.server.gate.entered > self.steps or stats.running + stats.waiting == 0
        )
        await trio.testing.wait_all_tasks_blocked(0.002)

    def live(self) -> list[Owner]:
        """Those whose requests the server holds and nobody has ended yet."""
        exchanges = self.server.state.live
        return [
            owner
            for owner in self.all
            if owner.name in exchanges and exchanges[owner.name].record.outcome is None
        ]

    def computing(self) -> list[Owner]:
        """Those of them that still want something of the engine: a forward for each token."""

        def ended(owner: Owner) -> int:
            return len([number for number in self._forwards(owner) if number <= self.steps])

        return [owner for owner in self.live() if ended(owner) < owner.tokens]

    async def submit(self, number: int) -> None:
        if self.draining:
            return  # no new connections either
        refused = len(self.computing()) >= PLACES + QUEUE
        dialect = DIALECTS[number % len(DIALECTS)]
        client = await self.server.connect()
        name = f"r{len(self.all)}"
        port = client.stream.socket.getsockname()[1]
        owner = Owner(name, dialect, client, port, number % 3 > 0, 1 + number % 5)
        self.all.append(owner)
        fields = dialect.fields(owner.said, stream=owner.stream, max_tokens=owner.tokens)
        await client.post(dialect.path, fields, {"x-request-id": name})
        if refused:
            owner.end = "rejected"

    async def step(self, _number: int) -> None:
        self.server.gate.release()
        self.steps += 1

    def leave_by(
        self, leave: Callable[[Client], Awaitable[None]]
    ) -> Callable[[int], Awaitable[None]]:
        async def go(number: int) -> None:
            if owner := self._choose(number, "client_gone"):
                await leave(owner.client)

        return go

    async def cancel(self, number: int) -> None:
        owner = None if self.draining else self._choose(number, "cancelled")
        if owner is None:
            return
        client = await self.server.connect()

        async def ask() -> None:
            await client.request("POST", f"/v1/requests/{owner.name}/cancel")
            assert (await client.response())[0] == 200

        self.nursery.start_soon(ask)

    async def deadline(self, number: int) -> None:
        if owner := self._choose(number, "deadline"):
            self.server.state.live[owner.name].end(Outcome.DEADLINE)

    async def shut_down(self, number: int) -> None:
        if number % 4 == 0:  # seldom: little can follow
            self.server.state.stopping.set()
            self.draining = True

    async def stall(self, number: int) -> None:
        """A client stops reading, and its socket is full."""
        if live := self.live():
            self.sockets.fill(live[number % len(live)].port)

    async def resume(self, number: int) -> None:
        """One of those reads again."""
        if full := sorted(self.sockets.full):
            self.sockets.empty(full[number % len(full)])

    async def cut(self, number: int) -> None:
        """A write's patience is at its end."""
        waiting = [owner for owner in self.live() if owner.port in self.sockets.waiting]
        if owner := self._choose(number, "stalled", waiting):
            self.sockets.waiting[owner.port].lose("stalled")

    def _choose(self, number: int, end: str, among: list[Owner] | None = None) -> Owner | None:
        live = self.live() if among is None else among
        if not live:
            return None
        owner = live[number % len(live)]
        owner.end, owner.last_forward = end, self.server.gate.entered
        return owner

    def check(self) -> None:
        """After every action, and while nothing moves."""
        stats, exchanges = self.server.engine.engine.stats, self.server.state.live
        assert stats.running <= PLACES
        assert stats.running + stats.waiting <= len(exchanges)
        assert len(self.computing()) <= PLACES + QUEUE
        assert len(self.server.model.live_states) <= PLACES + 1  # one may be held by the forward
        for owner in self.all:
            if owner.end is not None and owner.name in exchanges:
                assert exchanges[owner.name].record.outcome == owner.end

    async def finish(self, lines: RequestLines) -> None:
        """Let all go on that still want to; each has what it was promised."""
        for port in list(self.sockets.full):
            self.sockets.empty(port)
        self.server.gate.open()
        for owner in self.all:
            if owner.end is None:
                status, body = await owner.client.response()
                assert status == 200
                text = owner.dialect.read(body, stream=owner.stream).text
                assert text == (owner.said * 5)[: owner.tokens]
                owner.end = "completed"
        await self.server.idle()
        ends = {line["id"]: line["outcome"] for line in lines.requests}
        assert ends == {owner.name: owner.end for owner in self.all}
        assert len(lines.requests) == len(self.all)
        assert not lines.complaints
        stats = self.server.engine.engine.stats
        assert (stats.running, stats.waiting) == (0, 0)
        assert not self.server.model.live_states
        for owner in self.all:
            if owner.last_forward is not None:
                assert max(self._forwards(owner), default=0) <= owner.last_forward
            elif owner.end == "rejected":
                assert not self._forwards(owner)

    def _forwards(self, owner: Owner) -> list[int]:
        """Numbers of the forwards that computed anything for it."""
        prompt = tuple(f"user: {owner.said}\nassistant: ".encode())
        numbers = {
            row.sequence
            for rows in self.server.model.forwards
            for row in rows
            if row.token_ids[1:] == prompt
        }
        return [forward for number in numbers for forward, _ in self.server.rows(number)]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), max_size=25))
def test_any_order(actions: list[tuple[str, int]]) -> None:
    async def main() -> None:
        with request_lines() as lines:
            async with (
                serving(
                    gated=True, max_running=PLACES, max_waiting=QUEUE, drain_timeout_s=1000
                ) as server,
                trio.open_nursery() as nursery,
            ):
                sockets = FullSockets()
                with server.gate.opened_at_exit(), sockets.injected():
                    walk = Walk(server, nursery, sockets)
                    for action, number in actions:
                        await walk.act(action, number)
                    await walk.finish(lines)

    trio.run(main)
