"""What one client connection may cost: every bound the connection keeps, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds in bytes and seconds. The defaults without a source are guesses on the safe side."""

    #: Connections open at once; one more is answered 503 and closed.
    max_connections: int = 1000
    #: From accept to the end of the TLS handshake.
    tls_handshake_s: float = 10.0
    #: Without a byte of a request, before the first one or between two (nginx has 75).
    keep_alive_s: float = 75.0
    #: From a request's first byte to the end of its headers; then 408.
    header_s: float = 10.0
    #: Request line and headers together; more is 431. Also bounds a chunk's header and trailers.
    header_bytes: int = 32 * KIB
    #: Without a byte of a body that the application waits for; then 408.
    body_idle_s: float = 30.0
    #: Slower bodies are 408, once ``body_idle_s`` have passed.
    min_body_bytes_per_s: int = 256
    #: Body received ahead of the application, plus at most one read of 64 KiB.
    unread_body_bytes: int = 256 * KIB
    #: Bytes of following requests kept while one runs; more closes the connection. When the answer
    #: has been written, ``linger_bytes``.
    pipelined_bytes: int = 64 * KIB
    #: A blocked write without progress for so long is a stall.
    write_stall_s: float = 30.0
    #: So is less than this, over each ``write_stall_s`` spent waiting for the reader.
    min_write_bytes_per_s: int = 512
    #: From the client's leaving until an application that has not returned is cancelled.
    disconnect_grace_s: float = 5.0
    #: How long, and how much, is read and dropped after an answer that left a body unread.
    linger_s: float = 5.0
    linger_bytes: int = 64 * MIB
    #: A peer whose packets are lost without a word is gone after so long (TCP only). A reader that
    #: keeps its window shut counts as lost too, unless a write is blocked: then the stall decides.
    vanish_s: float = 25.0
    #: What the peer's FIN means while its request runs. ``cancel``: it has left. ``respond``: it
    #: still gets its answer (plain TCP only; see ``Transport.wait_for_error``).
    half_close: Literal["cancel", "respond"] = "cancel"
