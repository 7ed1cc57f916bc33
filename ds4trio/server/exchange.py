"""One request's life: the only place that cancels a request, the only caller of HTTP ``send``.

Beside the work runs a watcher, the only caller of ``receive``. Whatever ends a request early --
disconnect, failed or stalled write, deadline, cancel on demand, shutdown -- goes through `end` and
becomes one cancel scope; the first reason is recorded and stays. Engine work exists only inside
that scope, so it ends with it.

*Gone* and *finished* are told apart by ``_finishing``: ASGI reports a disconnect after every
normal completion too, and from the last write on only a failed write counts as a loss.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from ds4trio.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    DeadlineExceededError,
    Ds4TrioError,
    EngineFailed,
    NotFoundError,
    RequestCancelledError,
    UnavailableError,
)
from ds4trio.server import sse
from ds4trio.server.connection import ConnectionStalled
from ds4trio.server.headers import SSE_HEADERS, id_headers, retry_after
from ds4trio.server.record import Outcome, Phase, RequestRecord
from ds4trio.server.speech import Speech
from ds4trio.server.words import Spoken, is_end
from ds4trio.threads import run_off_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ds4trio.engine.progress import SequenceProgress
    from ds4trio.events import GenerationEvent
    from ds4trio.protocols.wire import ParsedRequest, WireEvent, WireProtocol
    from ds4trio.reply import Reply
    from ds4trio.server.headers import Headers
    from ds4trio.server.responses import Remembered
    from ds4trio.server.state import ServerState
    from ds4trio.server.words import Words
    from ds4trio.service import Service

Receive: TypeAlias = "Callable[[], Awaitable[dict[str, Any]]]"
Send: TypeAlias = "Callable[[dict[str, Any]], Awaitable[None]]"
Work: TypeAlias = "Callable[[Exchange], Awaitable[None]]"

#: A body larger than this is parsed off the event loop (a guess: about a millisecond of JSON).
PARSE_INLINE_BYTES = 64 * 1024
#: How long a request that was ended may take to say why.
LAST_WORDS_S = 0.5

log = logging.getLogger("ds4trio.server")


def with_headers(send: Send, headers: Headers) -> Send:
    """``send``, which says more in each answer's head."""
    if not headers:
        return send

    async def sending(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return sending


async def respond(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes,
    headers: Headers,
) -> None:
    """A whole answer that needs no engine. A client that has left misses it, no more."""
    head = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    with suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})


async def send_lifespan(send: Send, event: str, message: str = "") -> None:
    """Tell the server how starting or stopping went."""
    await send({"type": f"lifespan.{event}", "message": message})


class Exchange:
    """One generation request, from its body to its last byte.

    ``work`` is what it does with its life instead, if not `answer`: called once, in the scope that
    everything ends with.
    """

    def __init__(
        self,
        state: ServerState,
        protocol: WireProtocol,
        record: RequestRecord,
        receive: Receive,
        send: Send,
        *,
        key: str | None,
        timeout_s: float | None,
        work: Work | None = None,
    ) -> None:
        self.record = record
        record.key = key
        self.protocol = protocol
        self.key = key
        self.timeout_s = timeout_s
        self.ended = trio.Event()
        #: The answer, if it is to be kept beyond this request.
        self.remembered: Remembered | None = None
        self._state = state
        self._receive = receive
        self._send = send
        self._scope = trio.CancelScope()
        self._body = bytearray()
        self._body_arrived = trio.Event()
        self._work = work or Exchange.answer
        self._reply: Reply | None = None
        self._words: Words | None = None
        self._error: Ds4TrioError | None = None
        self._started = False
        self._finishing = False
        self._beside: trio.Nursery | None = None

    @property
    def owner(self) -> str | None:
        """Whose answers it may see, for as long as answers are kept."""
        return self._state.owner(self.key)

    @property
    def sequences(self) -> list[tuple[int, SequenceProgress]] | None:
        """What the engine holds for it now: the answer's index, and how far that has come. None
        before it was asked for any."""
        return None if self._reply is None else self._reply.progress()

    def end(self, outcome: Outcome, detail: str | None = None) -> None:
        """End this request now. Only the first call (or the natural end) counts."""
        self._decide(outcome, detail)
        if self._reply is not None:
            self._reply.cancel()  # the scope is heard in the engine's block only turns later
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the request. Returns normally however the request ends."""
        self._state.enter(self)
        try:
            async with trio.open_nursery() as nursery:
                self._beside = nursery
                nursery.start_soon(self._watch)
                if self.timeout_s is not None:
                    nursery.start_soon(self._end_after, self.timeout_s)
                try:
                    with self._scope:
                        await self._serve()
                except trio.Cancelled:
                    # The whole server is being cancelled.
                    self._decide(Outcome.SHUTDOWN)
                    raise
                finally:
                    self._scope = trio.CancelScope(shield=True)
                    self._scope.deadline = trio.current_time() + LAST_WORDS_S
                    with self._scope:
                        await self._last_words()
                nursery.cancel_scope.cancel()
        finally:
            self._close_record()
            self._state.leave(self)
            if self.remembered is not None:
                self._state.responses.settle(self.remembered, self.record.outcome, self._error)
            self.ended.set()

    async def _end_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        if self.record.outcome is None:  # last words are left to their own time
            self.end(Outcome.DEADLINE)

    # --- the client's side ---

    async def _watch(self) -> None:
        """Take the body as it comes, then wait for the client to leave."""
        limit = self._state.settings.max_body_bytes
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if not self._finishing:
                    stalled = message.get("reason") == "stalled"
                    self.end(Outcome.STALLED if stalled else Outcome.CLIENT_GONE)
                return
            if len(self._body) <= limit:
                self._body += message.get("body", b"")
            if not message.get("more_body", False) or len(self._body) > limit:
                self._body_arrived.set()

    async def _read_body(self) -> bytes:
        limit = self._state.settings.max_body_bytes
        timeout_s = self._state.settings.body_timeout_s
        with trio.move_on_after(timeout_s):
            await self._body_arrived.wait()
        if len(self._body) > limit:
            raise BodyTooLargeError(f"The request body is larger than {limit} bytes.")
        if not self._body_arrived.is_set():
            raise BodyTimeoutError(f"The request body did not arrive within {timeout_s:g} s.")
        body = bytes(self._body)
        self._body.clear()  # what is asked may take an hour to answer
        return body

    # --- the work ---

    async def _serve(self) -> None:
        try:
            await self._work(self)
            self._decide(Outcome.COMPLETED)
        except EngineFailed as error:
            self._error = error
            self._decide(Outcome.FAILED, error.message)
        except Ds4TrioError as error:
            self._error = error
            self._decide(Outcome.REJECTED, error.message)
        except Exception:
            log.exception("%s: internal error", self.record.request_id)
            self._error = Ds4TrioError("Internal server error.")
            self._decide(Outcome.FAILED, "internal error")

    async def answer(self) -> None:
        """Read what is asked, and answer it, or have it answered in the background."""
        parsed = await self._parse(await self._read_body())
        self.record.stream = parsed.stream
        self.record.phase = Phase.TOKENIZE
        self._check_model(parsed, self._state.ready_service())
        asked, responses = parsed.continuation, self._state.responses
        if asked is not None:
            parsed = await responses.resume(parsed, asked, self.owner)
            if asked.background:
                live = responses.start(self._state, parsed, self)
                if parsed.stream:
                    await self.speak(responses.follow(live.id, self.owner))
                else:
                    await self._write_whole(live.answer.response())
                return
            if asked.store:
                self.remembered = responses.begin(parsed, self.owner)
        await self.generate(parsed)

    async def compute(self, function: Callable[[Service, bytes], Awaitable[bytes]]) -> None:
        """Something of the model's that needs no engine: a body made of the request's."""
        body = await self._read_body()
        self.record.phase = Phase.TOKENIZE
        await self._write_whole(await function(self._state.ready_service(), body))

    async def generate(self, parsed: ParsedRequest) -> None:
        """The engine's answer to a request, in its protocol's words."""
        service = self._state.ready_service()
        async with service.generate(
            parsed.generation, self._state.share(self.record)
        ) as self._reply:
            if parsed.stream:
                spoken = Spoken(self._reply, parsed.writer, self._note)
                await self.speak(spoken, parsed.writer.start())
            else:
                events = await self._gather(self._reply)
        if not parsed.stream:
            await self._write_whole(parsed.writer.whole(events))

    async def speak(self, words: Words, opening: Sequence[WireEvent] = ()) -> None:
        """A stream, from its head to its last word."""
        self._words = words
        await self._start(200, SSE_HEADERS)
        # Even if it is nothing: the head goes out with it, and clients time out waiting for that.
        await self._write(sse.encode(opening))
        speech = Speech(words, self._say, self._state.settings.heartbeat_s)
        assert self._beside is not None
        self._beside.start_soon(speech.watch)
        await speech.run()

    def _check_model(self, parsed: ParsedRequest, service: Service) -> None:
        asked = parsed.generation.model
        if self._state.settings.strict_model_name and asked not in (None, service.name):
            raise NotFoundError(
                f"The model {asked!r} does not exist.", param="model", code="model_not_found"
            )

    async def _parse(self, body: bytes) -> ParsedRequest:
        service = self._state.ready_service()
        if len(body) > PARSE_INLINE_BYTES:
            return await run_off_loop(self.protocol.parse, body, service.name)
        return self.protocol.parse(body, service.name)

    async def _gather(self, reply: Reply) -> list[GenerationEvent]:
        events: list[GenerationEvent] = []
        while not is_end(events):
            batch = await reply.receive()
            self._note(reply)
            events += batch
        self.record.phase = Phase.WRITE
        return events

    def _note(self, reply: Reply) -> None:
        """Keep the record's times true."""
        self.record.first_token_at = reply.first_token_at
        for gap in reply.take_token_gaps():
            self._state.metrics.inter_token(gap)

    # --- the server's side ---

    async def _start(self, status: int, headers: Headers) -> None:
        head = [*headers, *id_headers(self.record.request_id)]
        await self._put({"type": "http.response.start", "status": status, "headers": head})
        self._started = True
        self.record.status = status

    async def _say(self, data: bytes, last: bool) -> None:
        if last:
            self.record.phase = Phase.WRITE
        await self._write(data, last=last)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        self._finishing = last
        await self._put({"type": "http.response.body", "body": data, "more_body": not last})
        if last:
            # Whatever is still to be let go of: nothing can end it early any more.
            self._decide(Outcome.COMPLETED)

    async def _write_whole(
        self, body: bytes, status: int = 200, extra: Headers | None = None
    ) -> None:
        length = (b"content-length", b"%d" % len(body))
        await self._start(status, [(b"content-type", b"application/json"), length, *(extra or [])])
        await self._write(body, last=True)

    async def _put(self, message: dict[str, Any]) -> None:
        """Every write. A failed one ends the request; nothing is written after it.

        Cancelled before a byte was written, last words can still be said; later the connection
        refuses them, and is cut.
        """
        try:
            await self._send(message)
        except OSError as error:
            stalled = isinstance(error, ConnectionStalled)
            self.end(Outcome.STALLED if stalled else Outcome.CLIENT_GONE)
            await trio.lowlevel.checkpoint()
            raise AssertionError("unreachable: the scope is cancelled") from None

    async def _last_words(self) -> None:
        """Tell a client that is still there why its request ended early."""
        outcome = self.record.outcome
        if outcome in (Outcome.COMPLETED, Outcome.CLIENT_GONE, Outcome.STALLED):
            return
        error = self._error or error_for(outcome)
        if not self._started:
            body = self.protocol.render_error(error)
            await self._write_whole(body, self.protocol.status(error), retry_after(error))
        elif self._words is not None:
            await self._write(sse.encode(self._words.fail(error)), last=True)

    def _decide(self, outcome: Outcome, detail: str | None = None) -> None:
        record = self.record
        if record.outcome is not None:
            return
        record.outcome = outcome
        record.detail = detail
        if self._reply is not None and record.phase is not Phase.WRITE:
            # Asked now, because the reply goes on without a word to us: in the queue, and while
            # its text is held back.
            record.phase = Phase(self._reply.phase)

    def _close_record(self) -> None:
        record = self.record
        record.ended_at = perf_counter()
        if self._reply is not None and (report := self._reply.report) is not None:
            record.take(report)
        self._state.request_ended(record)


def error_for(outcome: Outcome | None) -> Ds4TrioError:
    """What to say of a request that something other than an error has ended."""
    match outcome:
        case Outcome.DEADLINE:
            return DeadlineExceededError("The request's deadline has passed.")
        case Outcome.CANCELLED:
            return RequestCancelledError("The request was cancelled.")
        case _:
            return UnavailableError("The server is shutting down.")
