"""Run the server inside a Trio program: sockets, signals, draining.

Hypercorn brings TLS, lifespan and the accept loop; the connections are `connection`'s.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve

from ds4trio.config import Settings
from ds4trio.errors import ConfigError
from ds4trio.server.app import App
from ds4trio.server.keys import ApiKeys
from ds4trio.server.metrics import Metrics
from ds4trio.server.state import ServerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ds4trio.service import Service

    OpenService = Callable[[Settings], AbstractAsyncContextManager[Service]]

#: What hypercorn may take beyond our own draining before it cancels what is left.
GRACE_S = 0.5


def make_state(settings: Settings) -> ServerState:
    """Raises: ConfigError for unreadable keys."""
    metrics = Metrics()
    keys = ApiKeys.load(settings.api_keys_file) if settings.api_keys_file else None
    state = ServerState(settings, metrics, keys)
    metrics.watch_engine(lambda: state.service.engine.stats if state.service else None)
    return state


async def serve(
    engine: Service,
    settings: Settings | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an engine that the caller holds, until cancelled.

    ``await nursery.start(ds4trio.serve, engine, settings)`` returns the bound addresses. No
    signal handlers are installed. Raises: ConfigError (address in use, bad keys file).
    """
    await _serve(
        settings or Settings(), lambda _: nullcontext(engine), trio.Event(), task_status=task_status
    )


async def serve_until_signal(settings: Settings, open_service: OpenService) -> None:
    """What ``ds4trio serve`` runs: load the model, serve it, drain on SIGINT or SIGTERM.

    A second signal ends the process at once. Raises: ConfigError, LoadError, EngineFailed.
    """
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_set_on_signal, stop)
        await _serve(settings, open_service, stop)
        nursery.cancel_scope.cancel()


async def _set_on_signal(stop: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            if stop.is_set():
                os._exit(128 + number)
            stop.set()


async def _serve(
    settings: Settings,
    open_service: OpenService,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    state = make_state(settings)
    listener = _bind(settings.host, settings.port)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = settings.drain_timeout_s + GRACE_S
    config.startup_timeout = config.shutdown_timeout = float("inf")
    config.errorlog = None

    async with trio.open_nursery() as nursery:

        async def drain_when_told() -> None:
            await stop.wait()
            state.draining = True
            nursery.start_soon(_end_all_after, state, settings.drain_timeout_s)

        await hypercorn_serve(
            App(lambda: state, open_service, lambda _: stop.set()),  # type: ignore[arg-type]
            config,
            shutdown_trigger=drain_when_told,
            task_status=task_status,
        )
        nursery.cancel_scope.cancel()
    if state.failure is not None:
        raise state.failure


async def _end_all_after(state: ServerState, seconds: float) -> None:
    await trio.sleep(seconds)
    state.end_all()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None
