"""What a connection asks of an application and of its server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Message = MutableMapping[str, Any]
Scope = dict[str, Any]


class Application(Protocol):
    """An ASGI 3 application, as far as HTTP goes."""

    async def __call__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
        /,
    ) -> None: ...


class Draining(Protocol):
    """Set when the server shuts down: a ``trio.Event``, or hypercorn's ``context.terminated``."""

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...
