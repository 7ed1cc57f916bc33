"""What all requests of one server share. Lives on the Trio thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from ds4trio.errors import ConflictError, NotFoundError, UnavailableError
from ds4trio.logs import log_request
from ds4trio.server.record import Outcome

if TYPE_CHECKING:
    from ds4trio.config import Settings
    from ds4trio.errors import Ds4TrioError
    from ds4trio.server.exchange import Exchange
    from ds4trio.server.keys import ApiKeys
    from ds4trio.server.metrics import Metrics
    from ds4trio.server.record import RequestRecord
    from ds4trio.service import Service


@dataclass(slots=True)
class ServerState:
    """``service`` is None while the model loads; ``failure`` is why it never will be again."""

    settings: Settings
    metrics: Metrics
    keys: ApiKeys | None
    service: Service | None = None
    draining: bool = False
    failure: Ds4TrioError | None = None
    failed: trio.Event = field(default_factory=trio.Event)
    live: dict[str, Exchange] = field(default_factory=dict)
    #: Requests lately ended on demand, so that asking again is answered alike.
    cancelled: deque[tuple[str, str | None]] = field(default_factory=lambda: deque(maxlen=1000))

    def ready_service(self) -> Service:
        """The model, if requests may be started now. Raises: UnavailableError, EngineFailed."""
        if self.draining:
            raise UnavailableError("The server is shutting down.")
        if self.service is None:
            raise self.failure or UnavailableError("The model is still loading.")
        return self.service

    def enter(self, exchange: Exchange) -> None:
        """Raises: ConflictError if a request with the same id is alive."""
        request_id = exchange.record.request_id
        if request_id in self.live:
            raise ConflictError(f"A request with the id {request_id} is running.")
        self.live[request_id] = exchange

    async def cancel(self, request_id: str, key: str | None) -> None:
        """End one request on demand and wait until it has ended; again is no error.

        Raises: NotFoundError if it is not running, or is another key's.
        """
        if (request_id, key) in self.cancelled:
            return
        exchange = self.live.get(request_id)
        if exchange is None or exchange.key != key:
            raise NotFoundError(f"There is no running request {request_id}.")
        exchange.end(Outcome.CANCELLED)
        await exchange.ended.wait()
        if exchange.record.outcome is Outcome.CANCELLED:
            self.cancelled.append((request_id, key))

    def fail(self, error: Ds4TrioError) -> None:
        """Nothing will be computed any more."""
        self.service = None
        self.failure = error
        self.failed.set()

    def end_all(self) -> None:
        """Shutdown: end what is still running."""
        for exchange in list(self.live.values()):
            exchange.end(Outcome.SHUTDOWN)

    def request_ended(self, record: RequestRecord) -> None:
        """Count and log one request, once."""
        self.metrics.observe(record)
        log_request(record)
