"""One request and its response: the ASGI ``receive`` and ``send`` that an application gets.

The connection feeds it the body and wakes it when something has happened; it writes the response.
"""

from __future__ import annotations

from http.client import responses
from typing import TYPE_CHECKING

import h11
import trio

from ds4trio.server import http1

if TYPE_CHECKING:
    from collections.abc import Callable
    from http import HTTPStatus

    from ds4trio.server.asgi_types import Message
    from ds4trio.server.transport import Transport

#: Giving way to other tasks costs about as much as writing an event, so not each write does.
WRITES_PER_TURN = 16
#: Responses without a body whatever the headers say (RFC 9110, 6.4.1).
BODILESS = (204, 304)


class RequestCycle:
    """The state of one exchange.

    ``started``: bytes of the response were handed to the transport. ``complete``: all of them;
    ``ending``: or are about to be.
    ``refused``: why the body cannot be read to its end; answered if nothing else was.
    ``receive`` tells the application of one end only, the first: ``{"type": "http.disconnect",
    "reason": "closed" | "stalled" | "finished"}``, and again on each further call.
    """

    def __init__(
        self,
        http: h11.Connection,
        request: h11.Request,
        transport: Transport,
        *,
        unread_body_bytes: int,
        closing: Callable[[], bool],
        on_body_wanted: Callable[[], None],
    ) -> None:
        self.started = False
        self.ending = False
        self.complete = False
        self.refused: HTTPStatus | None = None
        self.is_head = request.method == b"HEAD"
        self._http = http
        self._transport = transport
        self._closing = closing
        self._on_body_wanted = on_body_wanted
        self._unread_body_bytes = unread_body_bytes
        self._body = bytearray()
        self._body_arrived = False
        self._body_delivered = False
        self._news = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        # A trio.Lock costs 3 us a turn, and a write is rarely contended.
        self._pen = trio.lowlevel.ParkingLot()
        self._pen_is_taken = False
        self._turns = 0
        self._head: h11.Response | None = None
        self._bodiless = self.is_head

    # What the connection calls

    def feed(self, data: bytes | bytearray) -> None:
        """More of the body."""
        if not self.complete:
            self._body += data
            self._news.unpark_all()

    def end_body(self) -> None:
        self._body_arrived = True
        self._news.unpark_all()

    def refuse(self, status: HTTPStatus) -> None:
        """The body cannot be read to its end. The application sees a disconnect."""
        self.refused = status
        self.wake()

    def wake(self) -> None:
        """The peer is lost, or the response complete: look again."""
        self._news.unpark_all()
        self._room.unpark_all()

    @property
    def body_is_full(self) -> bool:
        return len(self._body) >= self._unread_body_bytes and not self.complete

    async def wait_for_room(self) -> None:
        """Until the application has read on, or needs no more."""
        while self.body_is_full and self._transport.lost is None:
            await self._room.park()

    @property
    def ends_with_fin(self) -> bool:
        """Whether only the connection's end ends the response, so that a cut looks like its end."""
        assert self._head is not None
        names = {name for name, _ in self._head.headers}
        return b"content-length" not in names and self._http.their_http_version == b"1.0"

    # What the application calls

    async def receive(self) -> Message:
        """The next ASGI message: body as it has arrived, then, when it comes, the end."""
        await trio.lowlevel.checkpoint()
        while True:
            if (reason := self._end()) is not None:
                return {"type": "http.disconnect", "reason": reason}
            if self._body or (self._body_arrived and not self._body_delivered):
                return self._take_body()
            if self._http.they_are_waiting_for_100_continue:
                await self._ask_for_body()
            else:
                await self._news.park()

    async def send(self, message: Message) -> None:
        """Write an ASGI message. The head waits for the first body message, which may be empty.

        Cancelled before the first byte was written, the response may go on; later, nothing is ever
        written again. Raises: ConnectionLost, ConnectionStalled; RuntimeError and
        h11.LocalProtocolError for a message that is not due.
        """
        await self._take_the_pen()
        try:
            self._transport.raise_if_lost()
            if message["type"] == "http.response.body":
                await self._send_body(message.get("body", b""), message.get("more_body", False))
            elif message["type"] == "http.response.start" and self._head is None:
                self._start(message)
            else:
                raise RuntimeError(f"{message['type']!r} is not due")
        finally:
            self._put_the_pen_down()

    async def _take_the_pen(self) -> None:
        """Become the one writer. Always a point of cancellation; of scheduling, mostly not."""
        self._turns += 1
        if self._turns % WRITES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        while self._pen_is_taken:
            await self._pen.park()
        self._pen_is_taken = True

    def _put_the_pen_down(self) -> None:
        self._pen_is_taken = False
        if self._pen:
            self._pen.unpark()

    def _end(self) -> str | None:
        if self.complete:
            return "finished"
        if self._transport.lost is not None:
            return self._transport.lost
        return "closed" if self.refused is not None else None

    def _take_body(self) -> Message:
        body = bytes(self._body)
        self._body.clear()
        self._body_delivered = self._body_arrived
        self._room.unpark_all()
        return {"type": "http.request", "body": body, "more_body": not self._body_arrived}

    async def _ask_for_body(self) -> None:
        await self._take_the_pen()
        try:
            if self._http.they_are_waiting_for_100_continue and self._end() is None:
                await self._write(
                    self._http.send(h11.InformationalResponse(status_code=100, headers=[]))
                )
                self._on_body_wanted()
        finally:
            self._put_the_pen_down()

    def _start(self, message: Message) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", [])]
        if not any(name.lower() == b"date" for name, _ in headers):
            headers.append((b"date", http1.date()))
        body_is_left = self._http.their_state is h11.SEND_BODY or self.refused is not None
        if body_is_left or self._closing():
            headers.append((b"connection", b"close"))
        status = message["status"]
        reason = responses.get(status, "").encode()
        self._head = h11.Response(status_code=status, headers=headers, reason=reason)
        self._bodiless = self.is_head or status in BODILESS

    async def _send_body(self, body: bytes, more: bool) -> None:
        if self._head is None or self.complete:
            raise RuntimeError("'http.response.body' is not due")
        parts = [] if self.started else [self._http.send(self._head)]
        if body and not self._bodiless:
            parts.append(self._http.send(h11.Data(data=body)))
        if not more:
            parts.append(self._http.send(h11.EndOfMessage()))
        self.started = True
        self.ending = not more
        await self._write(b"".join(part for part in parts if part))
        if not more:
            self.complete = True
            self._body.clear()
            self.wake()

    async def _write(self, data: bytes | None) -> None:
        if data:
            await self._transport.write(data)
