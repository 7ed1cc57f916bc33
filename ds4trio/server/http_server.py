"""All connections of one server: what they share, and how many there may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from ds4trio.server.connection import serve_connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.server.asgi_types import Application, Draining
    from ds4trio.server.limits import ConnectionLimits


class HttpServer:
    """A handler for ``trio.serve_listeners``: serves each connection, and counts them.

    ``state`` is the lifespan's state, copied into every scope. Connections above
    ``max_connections`` are answered 503 and closed; above twice as many, closed without an answer.
    """

    def __init__(
        self,
        app: Application,
        *,
        limits: ConnectionLimits,
        state: Mapping[str, Any],
        draining: Draining,
    ) -> None:
        self.open_connections = 0
        self._app = app
        self._limits = limits
        self._state = state
        self._draining = draining

    async def __call__(self, stream: trio.abc.Stream) -> None:
        if self.open_connections >= 2 * self._limits.max_connections:
            await trio.aclose_forcefully(stream)
            return
        self.open_connections += 1
        try:
            await serve_connection(
                self._app,
                stream,
                limits=self._limits,
                state=self._state,
                draining=self._draining,
                refuse=self.open_connections > self._limits.max_connections,
            )
        finally:
            self.open_connections -= 1
