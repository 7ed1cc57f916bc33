"""Where our connection takes the place of hypercorn's: the only file that reaches into hypercorn.

Hypercorn keeps its command line, configuration, sockets, TLS contexts, lifespan and signals.
"""

from __future__ import annotations

import inspect
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import hypercorn.config
import hypercorn.trio.run
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.utils import ShutdownError

from ds4trio.errors import ConfigError
from ds4trio.server.http_server import HttpServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config
    from hypercorn.trio.worker_context import WorkerContext
    from hypercorn.typing import AppWrapper

    from ds4trio.server.asgi_types import Application
    from ds4trio.server.limits import ConnectionLimits

#: The series whose ``hypercorn/trio/run.py`` was read.
SERIES = "0.18."
PARAMETERS = ["app", "config", "context", "state", "stream"]
#: From our own draining's end until hypercorn cancels what is left: a little more than last words.
GRACE_S = 0.6


def install(
    limits: ConnectionLimits, *, ending: tuple[trio.Event, trio.Event] | None = None
) -> None:
    """Serve the connections that this process's hypercorn accepts from now on with ours.

    Call it before hypercorn starts to accept: from the application's lifespan start-up (hypercorn
    looks ``TCPServer`` up after that), or before ``hypercorn.trio.serve``. Calling it again only
    changes the limits. It replaces ``hypercorn.trio.run.TCPServer``, and takes HTTP/2 out of the
    default of ``Config.alpn_protocols``, because our connection speaks HTTP/1.1 only. Hypercorn's
    own HTTP settings (``keep_alive_timeout``, ``h11_max_incomplete_size``, the access log,
    ``max_requests``) lose their meaning.

    ``ending`` ties the server's end to two events, for an application that has no other say in it
    (``hypercorn ds4trio.asgi:app``): the first is set when hypercorn is told to stop, and setting
    the second stops hypercorn; until then it listens. This replaces
    ``hypercorn.trio.run.raise_shutdown``, and hypercorn's ``graceful_timeout`` becomes GRACE_S.

    Raises: ConfigError if this is not a hypercorn of the series it was written for.
    """
    module = cast("Any", hypercorn.trio.run)
    if not isinstance(getattr(module, "TCPServer", None), _TCPServer):
        _check(module)
    hypercorn.config.Config.alpn_protocols = ["http/1.1"]
    module.TCPServer = _TCPServer(limits, None if ending is None else GRACE_S)
    if ending is not None:
        module.raise_shutdown = partial(_raise_shutdown, *ending)


def _check(module: Any) -> None:  # noqa: ANN401 - a module whose shape is in doubt
    found = version("hypercorn")
    if not found.startswith(SERIES):
        raise ConfigError(f"hypercorn {found}: ds4trio's connection needs hypercorn {SERIES}x")
    stock = getattr(module, "TCPServer", None)
    shape = list(inspect.signature(stock).parameters) if callable(stock) else None
    serving = getattr(module, "worker_serve", None)
    looked_up = getattr(getattr(serving, "__code__", None), "co_names", ())
    if shape != PARAMETERS or not {"TCPServer", "raise_shutdown"} <= set(looked_up):
        raise ConfigError(f"hypercorn {found}: hypercorn.trio.run.TCPServer is not as expected")
    if not isinstance(getattr(hypercorn.config.Config, "alpn_protocols", None), list):
        raise ConfigError(f"hypercorn {found}: Config.alpn_protocols is not as expected")


async def _raise_shutdown(
    stopping: trio.Event, drained: trio.Event, told: Callable[[], Awaitable[object]]
) -> None:
    """Called like hypercorn's function of that name; ``told`` returns when it is told to stop."""
    async with trio.open_nursery() as nursery:

        async def set_when_told() -> None:
            await told()
            stopping.set()

        nursery.start_soon(set_when_told)
        await drained.wait()
        nursery.cancel_scope.cancel()
    raise ShutdownError


class _TCPServer:
    """Called like hypercorn's class of that name: once per connection, and the result awaited."""

    def __init__(self, limits: ConnectionLimits, grace_s: float | None) -> None:
        self.limits = limits
        self._grace_s = grace_s
        #: A server lives as long as its worker context.
        self._servers: WeakKeyDictionary[WorkerContext, HttpServer] = WeakKeyDictionary()

    async def __call__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: dict[str, Any],
        stream: trio.abc.Stream,
    ) -> None:
        if self._grace_s is not None:
            config.graceful_timeout = self._grace_s
        server = self._servers.get(context) or self._servers.setdefault(
            context, self._server(app, context, state)
        )
        await server(stream)

    def _server(self, app: AppWrapper, context: WorkerContext, state: dict[str, Any]) -> HttpServer:
        if not isinstance(app, ASGIWrapper):
            raise ConfigError("ds4trio's connection serves ASGI applications only")
        return HttpServer(
            cast("Application", app.app),
            limits=self.limits,
            state=state,
            draining=context.terminated,
        )
