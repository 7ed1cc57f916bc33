"""The ASGI application: its lifespan holds the model, its requests go to `routes`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ds4trio.errors import ConfigError, Ds4TrioError
from ds4trio.server.exchange import send_lifespan
from ds4trio.server.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from ds4trio.config import Settings
    from ds4trio.server.exchange import Receive, Send
    from ds4trio.server.routes import Scope
    from ds4trio.server.state import ServerState
    from ds4trio.service import Service

    OpenService = Callable[[Settings], AbstractAsyncContextManager[Service]]

#: Where the lifespan leaves the `ServerState` for the requests.
STATE_KEY = "ds4trio"

log = logging.getLogger("ds4trio.server")


class App:
    """Plain ASGI 3. Its lifespan holds the model; requests find it in ``scope["state"]``.

    ``on_failure`` is called once if the model cannot be loaded or its engine dies.
    ``beside`` runs as long as the server (listening for signals, say).
    """

    def __init__(
        self,
        make_state: Callable[[], ServerState],
        open_service: OpenService,
        *,
        on_failure: Callable[[Ds4TrioError], None],
        beside: Callable[[ServerState], Awaitable[None]] | None = None,
    ) -> None:
        self._make_state = make_state
        self._open_service = open_service
        self._on_failure = on_failure
        self._beside = beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await Routes(scope["state"][STATE_KEY])(scope, receive, send)
            case "lifespan":
                await self._lifespan(scope, receive, send)
            case other:
                raise ValueError(f"this application does not serve {other}")

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            state = self._make_state()
        except ConfigError as error:
            self._on_failure(error)
            await send_lifespan(send, "startup.failed", error.message)
            return
        scope["state"][STATE_KEY] = state
        await send_lifespan(send, "startup.complete")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hold_service, state)
            nursery.start_soon(state.drain)
            if self._beside is not None:
                nursery.start_soon(self._beside, state)
            async with trio.open_nursery() as jobs:
                # Background answers: they end, or are ended by the draining, before the engine is.
                state.responses.jobs = jobs
                await receive()
                state.stopping.set()
            state.responses.jobs = None
            nursery.cancel_scope.cancel()
        await send_lifespan(send, "shutdown.complete")

    async def _hold_service(self, state: ServerState) -> None:
        """The engine's nursery lives in this task, and so outlives every request."""
        try:
            async with self._open_service(state.settings) as service:
                state.service = service
                log.info("%s is ready", service.name)
                await trio.sleep_forever()
        except* Ds4TrioError as group:
            error = _first(group)
            state.fail(error)
            self._on_failure(error)


def _first(group: BaseExceptionGroup[Ds4TrioError]) -> Ds4TrioError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
