"""Run the server inside a Trio program: sockets, signals, and hypercorn around the application.

Hypercorn brings TLS, lifespan and the accept loop; the connections are `connection`'s.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
from contextlib import asynccontextmanager, nullcontext
from multiprocessing import parent_process
from typing import TYPE_CHECKING

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve

from ds4trio.config import Settings
from ds4trio.errors import ConfigError, Ds4TrioError
from ds4trio.server import hypercorn_seam
from ds4trio.server.app import App
from ds4trio.server.connection import ConnectionLimits
from ds4trio.server.keys import ApiKeys
from ds4trio.server.metrics import Metrics
from ds4trio.server.origins import Origins, is_loopback
from ds4trio.server.quota import Quota
from ds4trio.server.response_store import ResponseFolder
from ds4trio.server.responses import Responses
from ds4trio.server.state import ServerState
from ds4trio.server.web_page import page_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ds4trio.server.app import OpenService
    from ds4trio.service import Service

#: Connections that the kernel keeps until they are accepted; more at once it may reset.
BACKLOG = 2048

log = logging.getLogger("ds4trio.server")


async def serve(
    engine: Service,
    settings: Settings | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an engine that the caller holds, until cancelled.

    ``await nursery.start(ds4trio.serve, engine, settings)`` returns the bound addresses as URLs.
    Installs no signal handlers. Several may run in one process. Cancelling ends what runs at once,
    with a last event in each stream. Raises: ConfigError (address in use, bad keys file).
    """
    state = make_state(settings or Settings())
    await _serve(state, lambda _: nullcontext(engine), takes_signals=False, task_status=task_status)


async def serve_until_signal(settings: Settings, open_service: OpenService) -> None:
    """What ``ds4trio serve`` runs: load the model, serve it, drain on SIGINT or SIGTERM.

    A second signal ends the process at once. Raises: ConfigError, LoadError, EngineFailed.
    """
    state = make_state(settings)
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(_serve_taking_signals, state, open_service)
        log.info("listening on %s, loading %s", url, settings.model)
        if state.keys is None and not is_loopback(settings.host):
            log.warning("anyone who can reach %s can use it: no api_keys_file is set", url)


def for_good(open_service: OpenService) -> OpenService:
    """The same, for a process that does nothing but serve: what there is once the model is loaded
    stays, and the garbage collector leaves it alone.

    So its passes while serving are short, and the process ends soon: taking apart the modules that
    torch brings takes most of a second of CPU time.
    """

    @asynccontextmanager
    async def opened(settings: Settings) -> AsyncIterator[Service]:
        async with open_service(settings) as service:
            gc.collect()
            gc.freeze()
            yield service

    return opened


def make_state(settings: Settings) -> ServerState:
    """Raises: ConfigError for unreadable keys, names that are none, an unusable folder."""
    keys = ApiKeys.load(settings.api_keys_file) if settings.api_keys_file else None
    metrics_file = settings.metrics_keys_file
    metrics_keys = ApiKeys.load(metrics_file, "metrics_keys_file") if metrics_file else None
    origins = Origins.from_settings(settings.allowed_hosts, settings.cors_origins)
    folder = _response_folder(settings.responses_dir) if settings.responses_dir else None
    state = ServerState(
        settings,
        Metrics(),
        keys,
        metrics_keys,
        origins,
        page_files() if settings.page else {},
        responses=Responses(folder=folder),
    )
    rules = keys.rules if keys else ()
    state.quotas = {each.name: Quota(each, trio.current_time) for each in rules}
    state.metrics.watch_engine(lambda: state.service.engine.stats if state.service else None)
    state.metrics.watch_disk(lambda: state.service.disk_stats if state.service else None)
    return state


def _response_folder(path: Path) -> ResponseFolder:
    folder = ResponseFolder(path)
    try:
        folder.prepare()
    except OSError as error:
        raise ConfigError(f"responses_dir: {path}: {error.strerror}") from None
    return folder


def connection_limits(settings: Settings) -> ConnectionLimits:
    """The connection's bounds, as far as they can be set."""
    return ConnectionLimits(
        max_connections=settings.max_connections,
        write_stall_s=settings.client_stall_timeout_s,
        half_close=settings.half_close,
    )


async def stop_on_signal(state: ServerState) -> None:
    """The first SIGINT or SIGTERM stops the server, a second ends the process.

    Hypercorn's parent process sends its workers a SIGTERM of its own, which ends nothing.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        taken = 0
        async for number in signals:
            taken += 1
            if taken > 1 and (number == signal.SIGINT or parent_process() is None):
                os._exit(128 + number)
            log.info("%s: stopping", signal.Signals(number).name)
            state.stopping.set()


async def _serve_taking_signals(
    state: ServerState, open_service: OpenService, task_status: trio.TaskStatus[list[str]]
) -> None:
    await _serve(state, open_service, takes_signals=True, task_status=task_status)


async def _serve(
    state: ServerState,
    open_service: OpenService,
    *,
    takes_signals: bool,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    settings = state.settings

    def stop(_: Ds4TrioError) -> None:
        state.stopping.set()

    app = App(
        lambda: state,
        open_service,
        on_failure=stop,
        beside=stop_on_signal if takes_signals else None,
    )
    config = Config()
    config.bind = [f"fd://{_bind(settings.host, settings.port).detach()}"]
    config.backlog = BACKLOG
    config.graceful_timeout = hypercorn_seam.GRACE_S
    config.startup_timeout = config.shutdown_timeout = float("inf")
    config.errorlog = None
    hypercorn_seam.install(connection_limits(settings))
    await hypercorn_serve(
        app,  # type: ignore[arg-type]  # hypercorn's types name every message; ours are plain dicts
        config,
        shutdown_trigger=state.drained.wait,
        task_status=task_status,
    )
    if state.failure is not None:
        raise state.failure


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except (OSError, OverflowError, UnicodeError) as error:  # a name may be none at all
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}") from None
