"""What all requests of one server share. Lives on the Trio thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from ds4trio.errors import ConflictError, NotFoundError, UnavailableError
from ds4trio.logs import log_request
from ds4trio.server.record import Outcome
from ds4trio.server.responses import Responses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.config import Settings
    from ds4trio.engine.fair_queue import Share
    from ds4trio.errors import Ds4TrioError
    from ds4trio.server.exchange import Exchange
    from ds4trio.server.keys import ApiKeys
    from ds4trio.server.metrics import Metrics
    from ds4trio.server.origins import Origins
    from ds4trio.server.quota import Quota
    from ds4trio.server.record import RequestRecord
    from ds4trio.server.web_page import PageFile
    from ds4trio.service import Service


@dataclass(slots=True)
class ServerState:
    """``service`` is None while the model loads; ``failure`` is why it never will be again."""

    settings: Settings
    metrics: Metrics
    keys: ApiKeys | None
    #: The keys for `routes.INSIGHT`; None: those for all else.
    metrics_keys: ApiKeys | None
    origins: Origins
    page: Mapping[str, PageFile]
    responses: Responses = field(default_factory=Responses)
    service: Service | None = None
    failure: Ds4TrioError | None = None
    #: Set once, to stop the server: from then on it drains. It still listens, so that whoever asks
    #: ``/ready``, or for an answer, is told.
    stopping: trio.Event = field(default_factory=trio.Event)
    #: Set when nothing runs any more, or the drain deadline has come: the server closes.
    drained: trio.Event = field(default_factory=trio.Event)
    live: dict[str, Exchange] = field(default_factory=dict)
    #: Requests that had sequences and have ended lately, newest first (how many: a guess).
    ended: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=20))
    #: Requests lately ended on demand, so that asking again is answered alike.
    cancelled: deque[tuple[str, str | None]] = field(default_factory=lambda: deque(maxlen=1000))
    #: By the names of keys.
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    _quiet: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def draining(self) -> bool:
        """No new requests are taken; what runs may finish within ``drain_timeout_s``."""
        return self.stopping.is_set()

    def ready_service(self) -> Service:
        """The model, if requests may be started now. Raises: UnavailableError, EngineFailed."""
        if self.draining:
            raise UnavailableError("The server is shutting down.")
        if self.service is None:
            raise self.failure or UnavailableError("The model is still loading.")
        return self.service

    def owner(self, key: str | None) -> str | None:
        """The key's lasting name; None where no key is needed."""
        return None if key is None or self.keys is None else self.keys.owner(key)

    def check_quota(self, key: str | None) -> None:
        """Raises: RateLimitError, if the key may not ask for an answer now."""
        if quota := self.quotas.get(key or ""):
            quota.check()

    def share(self, record: RequestRecord) -> Share | None:
        """Whose a request is, which decides when its turn comes."""
        quota = self.quotas.get(record.key or "")
        return None if quota is None else quota.share(record.priority)

    def enter(self, exchange: Exchange) -> None:
        """Raises: ConflictError if a request with the same id is alive."""
        request_id = exchange.record.request_id
        if request_id in self.live:
            raise ConflictError(f"A request with the id {request_id} is running.")
        if quota := self.quotas.get(exchange.key or ""):
            quota.enter()
        self.live[request_id] = exchange

    async def cancel(self, request_id: str, key: str | None) -> None:
        """End one request on demand and wait until it has ended; again is no error.

        Raises: NotFoundError if it is not running, has ended otherwise, or is another key's.
        """
        exchange = self.live.get(request_id)
        if exchange is not None and exchange.key == key:
            exchange.end(Outcome.CANCELLED)
            await exchange.ended.wait()
            if exchange.record.outcome is Outcome.CANCELLED:
                self.cancelled.append((request_id, key))
                return
        elif (request_id, key) in self.cancelled:
            return
        raise NotFoundError(f"There is no running request {request_id}.")

    def fail(self, error: Ds4TrioError) -> None:
        """Nothing will be computed any more."""
        self.service = None
        self.failure = error

    def leave(self, exchange: Exchange) -> None:
        """It has ended, and its record is complete."""
        del self.live[exchange.record.request_id]
        record = exchange.record
        if quota := self.quotas.get(record.key or ""):
            quota.leave(
                record.prompt_tokens - record.cached_prompt_tokens + record.generated_tokens
            )
        if not self.live:
            self._quiet.unpark_all()

    async def drain(self) -> None:
        """Once the server is stopping: wait for what runs, then end what still does."""
        await self.stopping.wait()
        with trio.move_on_after(self.settings.drain_timeout_s):
            while self.live:
                await self._quiet.park()
        self.drained.set()
        for exchange in list(self.live.values()):
            exchange.end(Outcome.SHUTDOWN)

    def request_ended(self, record: RequestRecord) -> None:
        """Count and log one request, once."""
        self.metrics.observe(record)
        if record.prompt_tokens:
            self.ended.appendleft(record)
        log_request(record)
