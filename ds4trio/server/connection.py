"""One client connection: HTTP/1.1 (h11) on a Trio stream, running an ASGI application.

Two tasks matter. The *reader* never stops: it alone receives, so it learns of the peer's end in
every phase, whatever lies before it in the pipe. The *request* runs the application and writes.
Whoever finds the peer gone says so to the transport, once; that wakes ``receive``, ends a blocked
write, and starts the grace after which the application is cancelled.

::

                 bytes              whole head           application returned
       IDLE ──────────────► HEAD ──────────────► EXCHANGE ──┬──► IDLE / HEAD   both sides complete
         ▲                    │                     │       ├──► LINGER        body left unread
         └────────────────────┼─────────────────────┼───────┤
                   bad, slow  └──► LINGER           │       └──► ENDED         truncated, last one
                                                    └──────────► ENDED         peer lost

The reader is bounded: while a request runs, at most ``unread_body_bytes`` of body and
``pipelined_bytes`` of what follows it. A body over its bound is left in the kernel (flow control),
where a FIN behind it still shows to ``Transport.wait_for_end``; following requests over theirs end
the connection. In LINGER everything is read and dropped, within bounds, so that a client still
sending its body can read the answer instead of a reset.

HTTP/2 and WebSocket belong in the proxy in front: a preface is answered 505, an upgrade ignored.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

import h11
import trio

from ds4trio.server import http1
from ds4trio.server.edge import errors_logged
from ds4trio.server.limits import ConnectionLimits
from ds4trio.server.request_cycle import RequestCycle
from ds4trio.server.transport import ConnectionLost, ConnectionStalled, Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.server.asgi_types import Application, Draining, Scope

__all__ = ["ConnectionLimits", "ConnectionLost", "ConnectionStalled", "serve_connection"]

logger = logging.getLogger(__name__)

#: h11 needs tens of microseconds a chunk: others get a turn after so many.
EVENTS_PER_TURN = 32


async def serve_connection(
    app: Application,
    stream: trio.abc.Stream,
    *,
    limits: ConnectionLimits,
    state: Mapping[str, Any],
    draining: Draining,
    refuse: bool = False,
) -> None:
    """Serve one client until either side is done. Closes ``stream``.

    ``refuse`` answers the first request with 503. Raises nothing of its own, nor the application's
    exceptions, which are logged: only Cancelled, KeyboardInterrupt and SystemExit pass.
    """
    with errors_logged("a connection"):
        await _Connection(app, stream, limits, state, draining, refuse=refuse).run()


class _Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    EXCHANGE = auto()
    LINGER = auto()
    ENDED = auto()


class _Connection:
    def __init__(
        self,
        app: Application,
        stream: trio.abc.Stream,
        limits: ConnectionLimits,
        state: Mapping[str, Any],
        draining: Draining,
        *,
        refuse: bool,
    ) -> None:
        self._app = app
        self._limits = limits
        self._state = state
        self._draining = draining
        self._refuse = refuse
        self._transport = Transport(stream, limits, self._on_lost)
        self._phase = _Phase.IDLE
        self._http = self._new_http()
        self._cycle: RequestCycle | None = None
        self._input_ended = False
        self._lingered_bytes = 0
        self._body_bytes = 0
        self._body_since = 0.0
        self._deadline = inf
        self._reading = trio.CancelScope()
        self._running = trio.CancelScope()
        self._requests: trio.Nursery | None = None

    async def run(self) -> None:
        try:
            if await self._transport.handshake():
                async with trio.open_nursery() as watchers:
                    watchers.start_soon(self._watch_draining)
                    async with trio.open_nursery() as self._requests:
                        await self._read()
                    watchers.cancel_scope.cancel()
        finally:
            if self._transport.lost is not None or self._looks_complete_but_is_not():
                await self._transport.abort()
            else:
                await self._transport.close()

    # The reader

    async def _read(self) -> None:
        if self._refuse:
            await self._answer(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self._enter(_Phase.IDLE)
        while not self._has_ended():
            with trio.CancelScope(deadline=self._deadline) as self._reading:
                while not self._has_ended():
                    await self._read_once()
            if not self._has_ended():
                await self._on_deadline()

    def _has_ended(self) -> bool:
        return self._phase is _Phase.ENDED

    async def _read_once(self) -> None:
        if self._cycle is not None and self._cycle.body_is_full:
            await self._wait_for_room(self._cycle)
        elif self._input_ended:
            await self._transport.wait_for_error()
            self._transport.lose("closed")
        elif data := await self._transport.receive():
            await self._on_data(data)
        else:
            self._on_input_end()

    async def _wait_for_room(self, cycle: RequestCycle) -> None:
        self._set_deadline(inf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_unread_peer)
            await cycle.wait_for_room()
            nursery.cancel_scope.cancel()
        self._restart_body_clock()

    async def _watch_unread_peer(self) -> None:
        if self._limits.half_close == "respond":
            await self._transport.wait_for_error()
        else:
            await self._transport.wait_for_end()
        self._transport.lose("closed")

    async def _on_data(self, data: bytes) -> None:
        if self._phase is _Phase.LINGER:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > self._limits.linger_bytes:
                self._stop()
            return
        if self._cycle is not None and self._cycle.refused is not None:
            return
        if self._phase is _Phase.IDLE:
            # An empty line before a request is not an error (RFC 9112, 2.2).
            data = data.lstrip(b"\r\n")
            if not data:
                return
            self._enter(_Phase.HEAD)
        self._http.receive_data(data)
        await self._advance()
        if self._cycle is not None and not self._body_is_coming():
            self._limit_what_follows(self._cycle)

    def _limit_what_follows(self, cycle: RequestCycle) -> None:
        """Who has had the whole answer may ask again, at length, before we are done with it."""
        limits = self._limits
        most = limits.linger_bytes if cycle.ending else limits.pipelined_bytes
        if len(self._http.trailing_data[0]) > most:
            logger.info("closed a connection: too many bytes behind a running request")
            self._transport.lose("closed")

    def _on_input_end(self) -> None:
        """The peer's FIN, or its end in a way that ``Transport`` has already noticed."""
        cycle = self._cycle
        if cycle is None:
            self._stop()
        elif cycle.complete:
            self._input_ended = True
        elif self._limits.half_close == "cancel" or self._body_is_coming() or self._transport.tls:
            self._transport.lose("closed")
        else:
            self._input_ended = True

    async def _on_deadline(self) -> None:
        if self._phase is _Phase.HEAD:
            await self._answer(HTTPStatus.REQUEST_TIMEOUT)
        elif self._phase is _Phase.EXCHANGE and self._cycle is not None:
            self._set_deadline(inf)
            self._refuse_body(self._cycle, HTTPStatus.REQUEST_TIMEOUT)
        else:
            self._stop()

    # From bytes to requests

    async def _advance(self) -> None:
        """Act on all that has arrived and may be acted on now."""
        for turn in count(1):
            if self._phase not in (_Phase.HEAD, _Phase.EXCHANGE):
                return
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                await self._on_bad_bytes(http1.status_of(error))
                return
            if event is h11.NEED_DATA or event is h11.PAUSED:
                if self._input_ended and self._cycle is None:
                    self._stop()
                return
            await self._on_event(event)
            if turn % EVENTS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()

    async def _on_event(self, event: object) -> None:
        if isinstance(event, h11.Request):
            if (status := http1.unserved(event)) is not None:
                await self._answer(status)
            else:
                self._begin(event)
        elif self._cycle is not None:
            if isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                self._arm_for_body()
                self._cycle.feed(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._set_deadline(inf)
                self._cycle.end_body()

    async def _on_bad_bytes(self, status: HTTPStatus) -> None:
        if self._cycle is None:
            await self._answer(status)
        else:
            self._refuse_body(self._cycle, status)

    def _refuse_body(self, cycle: RequestCycle, status: HTTPStatus) -> None:
        if cycle.started and not cycle.complete:
            self._transport.lose("closed")
        else:
            self._start_grace(cycle)
            cycle.refuse(status)

    # The request

    def _begin(self, request: h11.Request) -> None:
        self._cycle = RequestCycle(
            self._http,
            request,
            self._transport,
            unread_body_bytes=self._limits.unread_body_bytes,
            closing=self._draining.is_set,
            on_body_wanted=self._restart_body_clock,
        )
        scope = http1.http_scope(
            request,
            scheme="https" if self._transport.tls else "http",
            client=self._transport.peer_address,
            server=self._transport.own_address,
            state=self._state,
        )
        self._running = trio.CancelScope()
        self._enter(_Phase.EXCHANGE)
        assert self._requests is not None
        self._requests.start_soon(self._run_request, self._cycle, scope, name=scope["path"])

    async def _run_request(self, cycle: RequestCycle, scope: Scope) -> None:
        if self._has_ended():
            return
        with self._running, errors_logged("the application"):
            await self._app(scope, cycle.receive, cycle.send)
        if self._has_ended():
            return
        if cycle.complete:
            await self._go_on()
        elif cycle.started:
            self._stop()
        else:
            status = cycle.refused or HTTPStatus.INTERNAL_SERVER_ERROR
            await self._answer(status, with_body=not cycle.is_head)

    async def _go_on(self) -> None:
        """After a complete response."""
        self._cycle = None
        behind = self._http.trailing_data[0].lstrip(b"\r\n")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http = self._new_http()
            if behind:
                self._http.receive_data(behind)
                self._enter(_Phase.HEAD)
                await self._advance()
            elif self._input_ended or self._draining.is_set():
                self._stop()
            else:
                self._enter(_Phase.IDLE)
        elif behind or self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            await self._linger()
        else:
            self._stop()

    def _body_is_coming(self) -> bool:
        return self._http.their_state is h11.SEND_BODY

    # Ends

    async def _answer(self, status: HTTPStatus, *, with_body: bool = True) -> None:
        """Answer in the application's place, then let the connection run out."""
        self._cycle = None
        self._enter(_Phase.LINGER)
        with suppress(ConnectionLost):
            await self._transport.write(http1.plain_answer(status, with_body=with_body))
            await self._linger()

    async def _linger(self) -> None:
        self._enter(_Phase.LINGER)
        if self._input_ended:
            self._stop()
        else:
            await self._transport.end_output()

    def _stop(self) -> None:
        self._enter(_Phase.ENDED)
        self._reading.cancel()

    def _on_lost(self) -> None:
        self._stop()
        if self._cycle is not None:
            self._start_grace(self._cycle)
            self._cycle.wake()

    def _start_grace(self, cycle: RequestCycle) -> None:
        if not cycle.complete:
            self._running.deadline = trio.current_time() + self._limits.disconnect_grace_s

    def _looks_complete_but_is_not(self) -> bool:
        cycle = self._cycle
        return cycle is not None and cycle.started and not cycle.complete and cycle.ends_with_fin

    async def _watch_draining(self) -> None:
        await self._draining.wait()
        if self._phase is _Phase.IDLE:
            self._stop()

    # Clocks

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        allowed_s = {
            _Phase.IDLE: self._limits.keep_alive_s,
            _Phase.HEAD: self._limits.header_s,
            _Phase.LINGER: self._limits.linger_s,
        }
        if phase is _Phase.EXCHANGE:
            self._restart_body_clock()
        else:
            self._set_deadline(trio.current_time() + allowed_s.get(phase, inf))

    def _restart_body_clock(self) -> None:
        """A client that waits for ``100 Continue`` is not slow."""
        self._body_since, self._body_bytes = trio.current_time(), 0
        if self._body_is_coming() and not self._http.they_are_waiting_for_100_continue:
            self._arm_for_body()
        else:
            self._set_deadline(inf)

    def _arm_for_body(self) -> None:
        earned_s = self._body_bytes / self._limits.min_body_bytes_per_s
        now = trio.current_time()
        self._set_deadline(min(now, self._body_since + earned_s) + self._limits.body_idle_s)

    def _set_deadline(self, deadline: float) -> None:
        self._deadline = self._reading.deadline = deadline

    def _new_http(self) -> h11.Connection:
        return h11.Connection(h11.SERVER, self._limits.header_bytes)
