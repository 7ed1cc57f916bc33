"""Answers that outlive their request: remembered, gone on from, made in the background.

A foreground answer is kept once its last byte was taken; one that ended in any other way is
forgotten. A background answer is made by an exchange of its own, the same as any other but that
its client is a log of events: only a cancel on demand, its deadline or the server's end can end it
early, and however it ends it is kept. What is kept is bounded (see `response_store`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import trio

from ds4trio.errors import OverloadedError, RequestError, UnavailableError
from ds4trio.protocols.fields import to_text
from ds4trio.protocols.openai_responses_writer import KEEPALIVE, error_word
from ds4trio.server.event_log import EventLog
from ds4trio.server.exchange import Exchange, error_for
from ds4trio.server.record import Outcome, RequestRecord
from ds4trio.server.response_store import ResponseFolder, ResponseStore, StoredResponse
from ds4trio.threads import run_off_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.errors import Ds4TrioError
    from ds4trio.events import GenerationEvent
    from ds4trio.protocols.wire import Continuation, ParsedRequest, ResponseWriter, WireEvent
    from ds4trio.server.state import ServerState

UNFINISHED = ("queued", "in_progress")

log = logging.getLogger("ds4trio.server")


class Remembered:
    """One answer while it is being made, and until it is kept or forgotten."""

    def __init__(self, asked: Continuation, owner: str | None) -> None:
        self.id = asked.answer.id
        self.owner = owner
        self.answer = asked.answer
        self.background = asked.background
        self.previous_id = asked.previous_id
        self.items = to_text(asked.items, "input").encode()
        self.log = EventLog()
        self.settled = trio.Event()
        self.wanted = True
        #: Who makes it, if that is not its client's own exchange, and in what words.
        self.job: Exchange | None = None
        self.words: ResponseWriter | None = None

    def stored(self) -> StoredResponse:
        return StoredResponse(
            id=self.id,
            owner=self.owner,
            previous_id=self.previous_id,
            status=self.answer.status,
            background=self.background,
            items=msgspec.Raw(self.items),
            body=msgspec.Raw(self.answer.response()),
        )


class _LoggingWriter:
    """Another writer, whose words are also written down."""

    def __init__(self, writer: ResponseWriter, event_log: EventLog) -> None:
        self._writer = writer
        self._log = event_log

    def start(self) -> Sequence[WireEvent]:
        return self._noted(self._writer.start())

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        return self._noted(self._writer.feed(events))

    def heartbeat(self) -> None:
        """Whoever reads the log keeps its own client's patience."""

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        return self._noted(self._writer.fail(error))

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        return self._writer.whole(events)

    def _noted(self, words: Sequence[WireEvent]) -> Sequence[WireEvent]:
        self._log.append(words)
        return words


class Following:
    """The words of an event log after a number, as they come."""

    def __init__(self, event_log: EventLog, after: int) -> None:
        self._log = event_log
        self._after = after

    async def more(self) -> tuple[Sequence[WireEvent], bool]:
        """Raises: RequestError if the reader is so slow that what it has not read is gone."""
        words, ended = await self._log.read(self._after)
        self._after += len(words)
        return words, ended

    def heartbeat(self) -> WireEvent:
        return KEEPALIVE

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        return [error_word(error, self._after + 1)]


@dataclass(slots=True)
class Responses:
    """All answers of one server. Runs on: trio.

    ``jobs`` is where background answers are made; it must end before the engine does.
    """

    store: ResponseStore = field(default_factory=ResponseStore)
    folder: ResponseFolder | None = None
    jobs: trio.Nursery | None = None
    _live: dict[str, Remembered] = field(default_factory=dict, init=False)
    _logs: dict[str, EventLog] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.folder is not None:
            gone = [old for response in self.folder.load() for old in self.store.add(response)]
            self.folder.remove(gone)

    # --- for the exchange that makes an answer ---

    async def resume(
        self, parsed: ParsedRequest, asked: Continuation, owner: str | None
    ) -> ParsedRequest:
        """The request with all that it refers to. An answer that is still being made is waited for.

        Raises: RequestError.
        """
        if asked.previous_id is None and not asked.references:
            return parsed
        history: Sequence[Any] = ()
        if asked.previous_id is not None:
            live = self._live_of(asked.previous_id, owner)
            if live is not None:
                await live.settled.wait()
            history = self.store.conversation(asked.previous_id, owner)
        found = {item_id: self.store.item(item_id, owner) for item_id in asked.references}
        # A long conversation takes as long as a large body.
        return await run_off_loop(asked.resume, history, found)

    def begin(self, parsed: ParsedRequest, owner: str | None) -> Remembered:
        """From now on its answer can be asked for."""
        assert parsed.continuation is not None
        live = Remembered(parsed.continuation, owner)
        self._live[live.id] = live
        return live

    def start(self, state: ServerState, parsed: ParsedRequest, asking: Exchange) -> Remembered:
        """Make an answer in the background. Raises: OverloadedError, UnavailableError."""
        state.ready_service().engine.check_capacity()
        most = state.settings.max_running + state.settings.max_waiting
        if len([live for live in self._live.values() if live.background]) >= most:
            raise OverloadedError("Too many background responses are being made.", retry_after_s=1)
        if self.jobs is None:
            raise UnavailableError("The server makes no responses in the background now.")
        live = self.begin(parsed, asking.owner)
        live.words = _LoggingWriter(parsed.writer, live.log)
        told = replace(parsed, stream=True, writer=live.words)
        live.job = Exchange(
            state,
            asking.protocol,
            RequestRecord(live.id, asking.record.protocol, asking.record.client, stream=True),
            _never_receive,
            _send_nowhere,
            key=asking.key,
            timeout_s=asking.timeout_s,
            work=lambda job: job.generate(told),
        )
        live.job.remembered = live
        self._logs[live.id] = live.log
        self.jobs.start_soon(live.job.run)
        return live

    def settle(self, live: Remembered, outcome: Outcome | None, error: Ds4TrioError | None) -> None:
        """The exchange that made it has ended."""
        if live.words is not None and live.answer.status in UNFINISHED:
            # It ended before it began to speak.
            live.words.fail(error or error_for(outcome))
        live.log.close()
        del self._live[live.id]
        live.settled.set()
        if live.wanted and (live.job is not None or outcome is Outcome.COMPLETED):
            self._keep(live.stored(), live.log.nbytes)
        else:
            self._logs.pop(live.id, None)

    # --- for those who ask about an answer ---

    async def body(self, response_id: str, owner: str | None) -> bytes:
        """The response object as it stands. Raises: NotFoundError."""
        live = self._live_of(response_id, owner)
        if live is not None:
            if live.answer.status in UNFINISHED:
                return live.answer.response()
            # Whether its client took it, and so whether it is kept, is known in a moment.
            await live.settled.wait()
        return bytes(self.store.get(response_id, owner).body)

    def items(self, response_id: str, owner: str | None) -> list[Any]:
        """Its input. Raises: NotFoundError."""
        live = self._live_of(response_id, owner)
        if live is not None:
            items: list[Any] = msgspec.json.decode(live.items)
            return items
        return self.store.get(response_id, owner).input()

    def follow(self, response_id: str, owner: str | None, after: int = -1) -> Following:
        """Its events after this number. Raises: NotFoundError, RequestError."""
        if self._live_of(response_id, owner) is None:
            self.store.get(response_id, owner)
        event_log = self._logs.get(response_id)
        if event_log is None:
            raise RequestError(
                "Only background responses of this server's own time can be streamed again.",
                param="stream",
            )
        event_log.check(after)
        return Following(event_log, after)

    async def cancel(self, response_id: str, owner: str | None) -> bytes:
        """End a background answer, and wait until it has; one that has ended stays as it is.

        Raises: NotFoundError; RequestError if it is not made in the background.
        """
        live = self._live_of(response_id, owner)
        background = live.background if live else self.store.get(response_id, owner).background
        if not background:
            raise RequestError("Only background responses can be cancelled.")
        await self._end(live)
        return bytes(self.store.get(response_id, owner).body)

    async def delete(self, response_id: str, owner: str | None) -> None:
        """Raises: NotFoundError."""
        live = self._live_of(response_id, owner)
        if live is not None:
            live.wanted = False
            await self._end(live)
            return
        self.store.delete(response_id, owner)
        self._forget([response_id])

    def _live_of(self, response_id: str, owner: str | None) -> Remembered | None:
        live = self._live.get(response_id)
        return None if live is None or live.owner != owner or not live.wanted else live

    async def _end(self, live: Remembered | None) -> None:
        if live is not None and live.job is not None:
            live.job.end(Outcome.CANCELLED)
            await live.settled.wait()

    def _keep(self, response: StoredResponse, log_bytes: int) -> None:
        gone = self.store.add(response, log_bytes)
        if response.id not in gone and self.folder is not None and self.jobs is not None:
            self.jobs.start_soon(self._write, self.folder, response)
        self._forget(gone)

    def _forget(self, response_ids: list[str]) -> None:
        for response_id in response_ids:
            self._logs.pop(response_id, None)
        if response_ids and self.folder is not None and self.jobs is not None:
            self.jobs.start_soon(self._remove, self.folder, response_ids)

    async def _write(self, folder: ResponseFolder, response: StoredResponse) -> None:
        try:
            await run_off_loop(folder.write, response)
        except OSError as error:
            log.warning("%s was not written: %s", response.id, error)
        if response.id not in self.store:
            await self._remove(folder, [response.id])

    async def _remove(self, folder: ResponseFolder, response_ids: list[str]) -> None:
        try:
            await run_off_loop(folder.remove, response_ids)
        except OSError as error:
            log.warning("a deleted response is still there: %s", error)


async def _never_receive() -> NoReturn:
    await trio.sleep_forever()


async def _send_nowhere(_: dict[str, Any]) -> None:
    """Nobody listens here: what is said is in the log."""
