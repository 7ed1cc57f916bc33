"""Bytes to and from one peer: writes under a deadline, and the peer's end known once.

Knows no HTTP. A plain socket is written to directly and waited for only when it is full, so that
the deadline costs nothing until the reader is slow. Other Trio streams (TLS, memory, Unix sockets
wrapped by others) are written to in pieces, each under the deadline.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ds4trio.server.limits import ConnectionLimits

RECEIVE_BYTES = 64 * 1024
#: One step of progress on a stream that cannot say how much it has taken.
PIECE_BYTES = 16 * 1024
#: The pace of looking at a socket whose readability says nothing any more.
POLL_S = 0.1
#: For a TLS close_notify, even while the server is being cancelled.
GOODBYE_S = 0.5
#: Keepalive probes per ``vanish_s``: the first after two fifths, then every fifth.
PROBES = 5

LossReason = Literal["closed", "stalled"]


class ConnectionLost(OSError):
    """The client is gone. Nothing more will be written."""


class ConnectionStalled(ConnectionLost):
    """The client stopped reading, or reads too slowly."""


class Transport:
    """One peer.

    ``lost`` is None until the peer is known to be gone, then says why, for ever; ``on_lost`` is
    called at that moment, synchronously. Whoever reads, writes or watches may find out.
    """

    def __init__(
        self, stream: trio.abc.Stream, limits: ConnectionLimits, on_lost: Callable[[], None]
    ) -> None:
        self.stream = stream
        self.tls = isinstance(stream, trio.SSLStream)
        self.lost: LossReason | None = None
        self._limits = limits
        self._on_lost = on_lost
        self._waiting: trio.CancelScope | None = None
        # Since the rate was last judged: time blocked in writes, and bytes taken.
        self._blocked_s = 0.0
        self._taken_bytes = 0
        carrier = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        self.socket = carrier.socket if isinstance(carrier, trio.SocketStream) else None
        self._is_tcp = self.socket is not None and self.socket.family in (
            socket.AF_INET,
            socket.AF_INET6,
        )
        if self._is_tcp:
            self._watch_for_vanishing()

        self.peer_address = self._address("getpeername")
        self.own_address = self._address("getsockname")

    def _address(self, method: str) -> tuple[str, int] | None:
        """Host and port, None for anything but TCP, or when the peer has gone already."""
        if self._is_tcp:
            with suppress(OSError):
                host, port, *_ = getattr(self.socket, method)()
                return host, port
        return None

    async def handshake(self) -> bool:
        """TLS only. False, and the peer lost, if it fails or takes too long."""
        if isinstance(self.stream, trio.SSLStream):
            done = False
            with (
                trio.move_on_after(self._limits.tls_handshake_s),
                suppress(trio.BrokenResourceError),
            ):
                await self.stream.do_handshake()
                done = True
            if not done:
                self.lose("closed")
        return self.lost is None

    def lose(self, reason: LossReason) -> None:
        """The peer is gone, for the first reason given. A blocked write raises at once."""
        if self.lost is None:
            self.lost = reason
            if self._waiting is not None:
                self._waiting.cancel()
            self._on_lost()

    def raise_if_lost(self) -> None:
        if self.lost == "stalled":
            raise ConnectionStalled("the client does not read its response")
        if self.lost is not None:
            raise ConnectionLost("the client is gone")

    async def receive(self) -> bytes:
        """The next bytes; none at the peer's FIN, and after a failure, which loses the peer."""
        try:
            return bytes(await self.stream.receive_some(RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.lose("closed")
            return b""

    async def write(self, data: bytes) -> None:
        """Write all of it. One writer at a time. A checkpoint only if it has to wait.

        Raises: ConnectionLost, ConnectionStalled. If it raises anything, Cancelled included, a
        part may have been written, so the peer is lost and nothing is ever written after it.
        """
        self.raise_if_lost()
        rest = memoryview(data)
        if not self.tls and self.socket is not None:
            rest = rest[self._write_now(rest, blocked=False) :]
        if rest:
            try:
                await self._write_patiently(rest)
            except BaseException:
                self.lose("closed")
                raise

    def _write_now(self, data: memoryview, *, blocked: bool) -> int:
        assert self.socket is not None
        try:
            sent = os.write(self.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            # A shut window ends in this error too, when the kernel's patience is the shorter.
            self.lose("stalled" if blocked and error.errno == errno.ETIMEDOUT else "closed")
            self.raise_if_lost()
            raise AssertionError("unreachable: the peer is lost") from error
        self._taken_bytes += sent
        return sent

    async def _write_patiently(self, rest: memoryview) -> None:
        plain = None if self.tls else self.socket
        self._set_kernel_patience(self._limits.write_stall_s + self._limits.vanish_s)
        while rest:
            if plain is not None:
                await self._under_deadline(trio.lowlevel.wait_writable, plain)
                rest = rest[self._write_now(rest, blocked=True) :]
            else:
                await self._under_deadline(self.stream.send_all, rest[:PIECE_BYTES])
                self._taken_bytes += len(rest[:PIECE_BYTES])
                rest = rest[PIECE_BYTES:]
            self._judge_rate()
        self._set_kernel_patience(self._limits.vanish_s)

    async def _under_deadline(self, wait: Callable[[Any], Awaitable[None]], what: object) -> None:
        started = trio.current_time()
        deadline = started + self._limits.write_stall_s
        with trio.CancelScope(deadline=deadline) as self._waiting:
            try:
                await wait(what)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.lose("closed")
        stalled = self._waiting.cancelled_caught and self.lost is None
        self._waiting = None
        self._blocked_s += trio.current_time() - started
        if stalled:
            self.lose("stalled")
        self.raise_if_lost()

    def _judge_rate(self) -> None:
        if self._blocked_s >= self._limits.write_stall_s:
            if self._taken_bytes < self._limits.min_write_bytes_per_s * self._blocked_s:
                self.lose("stalled")
                self.raise_if_lost()
            self._blocked_s, self._taken_bytes = 0.0, 0

    async def wait_for_end(self) -> None:
        """Return when the peer has sent its FIN or RST, even behind unread bytes (plain TCP)."""
        await self._poll(getattr(select, "POLLRDHUP", select.POLLHUP))

    async def wait_for_error(self) -> None:
        """Return when a peer that has sent its FIN is known to be gone altogether.

        That it has closed its socket shows only when something sent to it is answered with RST: a
        response's next bytes, or a keepalive probe.
        """
        await self._poll(0)

    async def _poll(self, events: int) -> None:
        # A poll needs no descriptor, and unlike Trio's wait_readable it can leave out readability.
        if self.tls or self.socket is None:
            await trio.sleep_forever()
        assert self.socket is not None
        poll = select.poll()
        poll.register(self.socket.fileno(), events)
        while not poll.poll(0):  # noqa: ASYNC110 - the kernel sets no Event
            await trio.sleep(POLL_S)

    async def end_output(self) -> None:
        """Send FIN and go on reading, where the stream can."""
        if isinstance(self.stream, trio.abc.HalfCloseableStream):
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self.stream.send_eof()

    async def close(self) -> None:
        """Close in order: what was written arrives. TLS says goodbye, under a deadline."""
        with trio.move_on_after(GOODBYE_S) as scope:
            scope.shield = self.tls
            with suppress(trio.BrokenResourceError):
                await self.stream.aclose()

    async def abort(self) -> None:
        """Close with RST, dropping what was not sent."""
        if self.socket is not None:
            with suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self.stream)

    def _watch_for_vanishing(self) -> None:
        """Both are needed: keepalive while silent, the user timeout while bytes are under way."""
        assert self.socket is not None
        interval_s = max(1, int(self._limits.vanish_s / PROBES))
        idle_s = max(1, int(self._limits.vanish_s) - (PROBES - 2) * interval_s)
        with suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
            if idle is not None:
                self.socket.setsockopt(socket.IPPROTO_TCP, idle, idle_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES - 2)
        self._set_kernel_patience(self._limits.vanish_s)

    def _set_kernel_patience(self, seconds: float) -> None:
        """For bytes sent but not acknowledged, and for a window that stays shut (Linux)."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if self._is_tcp and option is not None:
            assert self.socket is not None
            with suppress(OSError):
                self.socket.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))
