"""Requests that come, advance and go in any order, against a simple model of who owns what.

The worker is held inside each forward, and goes on only where the walk says so. Hypothesis makes
the walks, and finds the shortest one that breaks a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
import trio.testing
from dialects import DIALECTS, Dialect
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import RequestLines, request_lines
from serving import Client, Server, serving

from ds4trio.server.record import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PLACES, QUEUE = 2, 2
ACTIONS = ["submit", "submit", "step", "step", "fin", "rst", "cancel", "deadline", "shut_down"]


@dataclass(slots=True)
class Owner:
    """One request. ``end`` is how it must end: None as long as that is its own business."""

    name: str
    dialect: Dialect
    client: Client
    stream: bool
    tokens: int
    end: str | None = None
    #: The last forward that may compute anything for it.
    last_forward: int | None = None

    @property
    def said(self) -> str:
        return f"{self.name} "


class Walk:
    def __init__(self, server: Server, nursery: trio.Nursery) -> None:
        self.server = server
        self.nursery = nursery
        self.all: list[Owner] = []
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
        }[action](number)
        await trio.testing.wait_all_tasks_blocked(0.002)
        self.check()

    def live(self) -> list[Owner]:
        """Those whose requests the server holds and nobody has ended yet."""
        exchanges = self.server.state.live
        return [
            owner
            for owner in self.all
            if owner.name in exchanges and exchanges[owner.name].record.outcome is None
        ]

    async def submit(self, number: int) -> None:
        if self.draining:
            return  # no new connections either
        refused = len(self.live()) >= PLACES + QUEUE
        dialect = DIALECTS[number % len(DIALECTS)]
        client = await self.server.connect()
        name = f"r{len(self.all)}"
        owner = Owner(name, dialect, client, number % 3 > 0, 1 + number % 5)
        self.all.append(owner)
        fields = dialect.fields(owner.said, stream=owner.stream, max_tokens=owner.tokens)
        await client.post(dialect.path, fields, {"x-request-id": name})
        if refused:
            owner.end = "rejected"

    async def step(self, _number: int) -> None:
        self.server.gate.release()

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

    def _choose(self, number: int, end: str) -> Owner | None:
        live = self.live()
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
        assert len(self.live()) <= PLACES + QUEUE
        assert len(self.server.model.live_states) <= PLACES + 1  # one may be held by the forward
        for owner in self.all:
            if owner.end is not None and owner.name in exchanges:
                assert exchanges[owner.name].record.outcome == owner.end

    async def finish(self, lines: RequestLines) -> None:
        """Let all go on that still want to; each has what it was promised."""
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


@settings(max_examples=40)
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
                with server.gate.opened_at_exit():
                    walk = Walk(server, nursery)
                    for action, number in actions:
                        await walk.act(action, number)
                    await walk.finish(lines)

    trio.run(main)
