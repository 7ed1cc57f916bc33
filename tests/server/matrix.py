"""The matrix of leaving: protocol x stream x way x phase, one cell at a time.

A cell is three clients of one server with two places: a neighbour that stays, the victim that
leaves, and one that waits for the victim's place. The worker is held inside a forward while the
victim leaves, and goes on only when the server knows. What is asked is not "how fast" but "what is
still computed".
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest import mock

import trio
import trio.testing
from dialects import ask, prompt_tokens
from serving import Baseline, Client, Server, until

from ds4trio.logs import FIELDS
from ds4trio.server.exchange import Exchange
from ds4trio.server.record import Phase as Told
from ds4trio.server.transport import POLL_S, Transport
from ds4trio.testing import ByteTokenizer, PlainChatFormat
from ds4trio.threads import LoopPoster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from dialects import Dialect

    from ds4trio.server.record import Outcome

CHUNK = 32
#: The victim's prompt is so many chunks, the last of which gives the first token.
CHUNKS = 4
STOP = "</END>"
HELD_BACK = "</EN"
#: More tokens than any cell lasts, but fewer than the context holds.
LONG = 2000
SHORT = 3
#: What the neighbour, the next in the queue and a victim that is answered after all want: the first
#: goes on until the others are done.
STAYS, NEXT, ALL = 80, 4, 12
TIMEOUT_S = 5.0

_ids = count()


def padded(begin: str) -> str:
    """What a user says so that the prompt is exactly ``CHUNKS`` chunks. The script repeats it."""
    return begin + "x" * (CHUNKS * CHUNK - prompt_tokens(begin))


@dataclass(frozen=True, slots=True)
class Phase:
    """``forward`` of the victim is the one in which the worker is held; in a phase that has none
    of its own, the neighbour's second. ``told`` is what metrics and log line must say. ``signs``:
    one of them is in a stream that has come so far; ``offers`` a tool or not."""

    name: str
    told: str
    forward: int
    max_tokens: int = LONG
    said: str = padded("")
    extra: dict[str, object] = field(default_factory=dict)
    signs: tuple[bytes, ...] = ()
    offers: bool = False

    @property
    def is_computed(self) -> bool:
        """Whether the victim has a place of its own."""
        return self.told in ("prefill", "decode", "write")

    @property
    def generated(self) -> int:
        """Tokens sampled before the victim leaves."""
        return min(max(0, self.forward - CHUNKS), self.max_tokens)


LAST_FORWARD = CHUNKS + SHORT - 1
PHASES = [
    Phase("body", "body", 1),
    Phase("tokenize", "tokenize", 1),
    Phase("queue", "queue", 1),
    *(Phase(f"prefill chunk {k}", "prefill", k) for k in range(1, CHUNKS)),
    Phase("last chunk", "prefill", CHUNKS),
    Phase("first token", "decode", CHUNKS + 1),
    Phase("decode", "decode", CHUNKS + 6),
    Phase(
        "held-back stop text",
        "decode",
        CHUNKS + len(HELD_BACK),
        said=padded(HELD_BACK),
        extra={"stop": STOP},
    ),
    Phase("final step", "decode", LAST_FORWARD, max_tokens=SHORT),
    Phase("tail", "write", LAST_FORWARD + 1, max_tokens=SHORT),
]


# --- ways of leaving ---


async def kill(cell: Cell) -> None:
    """The process that holds the socket is ended by SIGKILL."""
    socket = cell.client.stream.socket
    process = await trio.lowlevel.open_process(["sleep", "1000"], pass_fds=[socket.fileno()])
    socket.close()
    process.kill()
    await process.wait()


async def pipelined_fin(cell: Cell) -> None:
    """Another request behind the one that runs hides the FIN from a reader that stops at it."""
    body = json.dumps(cell.dialect.fields("second", stream=cell.stream)).encode()
    head = (
        f"POST {cell.dialect.path} HTTP/1.1\r\nhost: localhost\r\nx-request-id: second\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    await cell.client.stream.send_all(head.encode() + body)
    await cell.client.fin()


async def crlf_fin(cell: Cell) -> None:
    """So does an empty line, which some clients send after a body."""
    await cell.client.stream.send_all(b"\r\n")
    await cell.client.fin()


async def half_close(cell: Cell) -> None:
    await cell.client.stream.send_eof()


async def half_close_rst(cell: Cell) -> None:
    await cell.client.stream.send_eof()
    await trio.testing.wait_all_tasks_blocked()
    await cell.client.rst()
    cell.clock.jump(POLL_S)  # where no write can tell, the server looks at its own pace


async def deadline(cell: Cell) -> None:
    cell.clock.jump(TIMEOUT_S)


async def api_cancel(cell: Cell) -> None:
    """Answered only when nothing is computed any more."""

    async def cancel() -> None:
        async with await cell.server.connect() as client:
            await client.request("POST", f"/v1/requests/{cell.request_id}/cancel")
            status, _ = await client.json()
        assert status == 200
        cell.forwards_at_cancel = cell.victims_forwards()

    cell.nursery.start_soon(cancel)


@dataclass(frozen=True, slots=True)
class Way:
    """``leave`` does it; ``outcome`` is what must be told of it."""

    name: str
    leave: Callable[[Cell], Awaitable[None]]
    outcome: str
    settings: dict[str, Any] = field(default_factory=dict)
    head: dict[str, str] = field(default_factory=dict)

    def outcome_in(self, phase: Phase) -> str:
        if self.outcome == "completed" and phase.name == "body":
            return "client_gone"  # it said that more would come
        return self.outcome


RESPOND = {"half_close": "respond"}
WAYS = [
    Way("FIN", lambda cell: cell.client.fin(), "client_gone"),
    Way("RST", lambda cell: cell.client.rst(), "client_gone"),
    Way("SIGKILL", kill, "client_gone"),
    Way("half-close", half_close, "client_gone"),
    Way("half-close, respond", half_close, "completed", RESPOND),
    Way("half-close, respond, then RST", half_close_rst, "client_gone", RESPOND),
    Way("pipelined request, then FIN", pipelined_fin, "client_gone"),
    Way("trailing CRLF, then FIN", crlf_fin, "client_gone"),
    Way("deadline", deadline, "deadline", head={"x-request-timeout": f"{TIMEOUT_S:g}"}),
    Way("API cancel", api_cancel, "cancelled"),
]


def meaningless(way: Way, phase: Phase) -> str | None:
    """Why a cell is left out, if it is. Stalls, vanishing and the embedder's scope have tables of
    their own: `test_stalls`, `test_vanish`, `test_matrix_scope`."""
    if phase.name == "body" and way.leave in (pipelined_fin, crlf_fin):
        return "what follows an unfinished body is body"
    return None


# --- one cell ---


class ThreadHold:
    """Holds a function that runs on another thread, when it is about the victim's text."""

    def __init__(self, mark: str) -> None:
        self.entered = trio.Event()
        self._mark = mark
        self._enter = LoopPoster[None](lambda _: self.entered.set())
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def held(*args: Any) -> Any:  # noqa: ANN401 - any function's
            if self._mark in str(args[-1]):
                self._enter(None)
                self._released.wait()
            return function(*args)

        return held


@contextmanager
def tokenizing_held(hold: ThreadHold) -> Iterator[None]:
    """Prompts that hold the mark are not ready before the hold is released."""
    with (
        mock.patch.object(ByteTokenizer, "encode", hold.around(ByteTokenizer.encode)),
        mock.patch.object(PlainChatFormat, "render", hold.around(PlainChatFormat.render)),
    ):
        try:
            yield
        finally:
            hold.release()


@contextmanager
def last_write_held(exchange: Callable[[], Exchange | None]) -> Iterator[trio.Event]:
    """The victim's last write is as if the socket were full. Yields what is set when it begins."""
    tried, real_write = trio.Event(), Transport.write

    async def write(transport: Transport, data: bytes) -> None:
        victim = exchange()
        if victim is not None and victim.record.phase is Told.WRITE and not released:
            tried.set()
            try:
                await until(lambda: transport.lost is not None or released)
            except trio.Cancelled:
                transport.lose("closed")  # as a write does that was cut short
                raise
        await real_write(transport, data)

    released: list[bool] = []
    with mock.patch.object(Transport, "write", write):
        try:
            yield tried
        finally:
            released.append(True)


@contextmanager
def hurried(cell: Cell) -> Iterator[None]:
    """The worker goes on in the very call in which the server comes to know, and the loop only when
    the next forward has begun: whoever hears of it by a later turn hears of it too late."""
    real_end, gate = Exchange.end, cell.server.gate

    def end(exchange: Exchange, outcome: Outcome, detail: str | None = None) -> None:
        real_end(exchange, outcome, detail)
        if exchange.record.request_id == cell.request_id:
            gate.release()
            gate.wait_reached(cell.held_at + 1)
            gate.open()

    with mock.patch.object(Exchange, "end", end):
        yield


class RequestLines(logging.Handler):
    """The lines about requests, as their fields, and every line that complains."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[dict[str, Any]] = []
        self.complaints: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.complaints.append(record.getMessage())
        if fields := getattr(record, FIELDS, None):
            self.requests.append(fields)


@contextmanager
def request_lines() -> Iterator[RequestLines]:
    lines, logger = RequestLines(), logging.getLogger("ds4trio")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)


def figures(server: Server) -> dict[str, float]:
    """The samples of /metrics, read without a client."""
    body, _ = server.state.metrics.render()
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def post_victim(
    server: Server,
    dialect: Dialect,
    phase: Phase,
    head: dict[str, str],
    *,
    stream: bool,
    max_tokens: int,
) -> Client:
    """Ask for what the phase needs; in the phase of the body, for half of it."""
    client = await server.connect()
    extra = {**phase.extra, "tools": [dialect.tool("f")]} if phase.offers else phase.extra
    fields = dialect.fields(phase.said, stream=stream, max_tokens=max_tokens, **extra)
    if phase.name == "body":
        body = json.dumps(fields).encode()
        head = {"content-type": "application/json", **head}
        await client.begin("POST", dialect.path, len(body), head)
        await client.stream.send_all(body[: len(body) // 2])
    else:
        await client.post(dialect.path, fields, head)
    return client


class Cell:
    """One victim, once. ``run`` raises AssertionError if a promise is broken."""

    client: Client
    exchange: Exchange
    nursery: trio.Nursery

    def __init__(
        self,
        server: Server,
        clock: trio.testing.MockClock,
        dialect: Dialect,
        way: Way,
        phase: Phase,
        *,
        stream: bool,
    ) -> None:
        self.server = server
        self.clock = clock
        self.dialect = dialect
        self.stream = stream
        self.way = way
        self.phase = phase
        self.request_id = f"victim-{next(_ids)}"
        self.outcome = way.outcome_in(phase)
        self.texts: dict[str, str] = {}
        self.forwards_at_cancel: list[int] = []
        self.first_sequence = 0

    async def run(self, lines: RequestLines) -> None:
        server = self.server
        baseline, before = await Baseline.take(), figures(server)
        lines.requests.clear()
        server.gate.shut()
        self.held_at = server.gate.entered + 1 + self.phase.forward
        hold = ThreadHold("x" * CHUNK)
        async with trio.open_nursery() as self.nursery:
            with server.gate.opened_at_exit():
                if self.phase.name == "tokenize":
                    with tokenizing_held(hold):
                        await self._leave_at(hold.entered)
                elif self.phase.name == "tail":
                    with last_write_held(lambda: server.state.live.get(self.request_id)) as tried:
                        await self._leave_at(tried)
                else:
                    await self._leave_at()
        if self.outcome == "completed":
            status, body = await self.client.response()
            assert status == 200, body
            text = self.dialect.read(body, stream=self.stream).text
            assert text == (self.phase.said * 2)[: self._max_tokens()]
        await server.idle()
        if self.client in server.clients:
            self.client.stream.socket.close()
        assert await Baseline.take() == baseline
        self._check_work()
        self._check_neighbours()
        self._check_told(lines, before)

    def _max_tokens(self) -> int:
        return min(self.phase.max_tokens, ALL if self.outcome == "completed" else LONG)

    async def _leave_at(self, reached: trio.Event | None = None) -> None:
        """Bring all to where the phase has them, let the victim leave, and go on."""
        server, phase = self.server, self.phase
        stats = server.engine.engine.stats
        self._ask("stays ", STAYS)
        await server.gate.reached(self.held_at - phase.forward)
        self.first_sequence = server.model.forwards[-1][0].sequence
        queued = 0
        if phase.name == "queue":
            self._ask("before ", SHORT)
            queued += 1
            await until(lambda: stats.waiting == 1)
        await self._post()
        queued += phase.is_computed or phase.name == "queue"
        await until(lambda: stats.waiting == queued and self.request_id in server.state.live)
        self.exchange = server.state.live[self.request_id]
        if phase.name == "tokenize":
            assert reached is not None
            await reached.wait()
        self._ask("next ", NEXT)
        await until(lambda: stats.waiting == queued + 1)
        server.gate.release(phase.forward)
        await server.gate.reached(self.held_at)
        if reached is not None:
            await reached.wait()
        # What the forwards before have said is delivered (and, in a stream, written).
        await trio.testing.wait_all_tasks_blocked()
        assert self.exchange.record.outcome is None
        if self.stream and phase.signs:
            await self.client.head()
            await self.client.read_until(lambda body: any(sign in body for sign in phase.signs))
        with hurried(self):
            await self.way.leave(self)
            if self.outcome == "completed":
                await trio.testing.wait_all_tasks_blocked()
                assert server.gate.entered == self.held_at
                server.gate.open()
            else:
                await until(lambda: self.exchange.record.outcome is not None)

    def _ask(self, said: str, max_tokens: int) -> None:
        async def listen() -> None:
            answer = await ask(self.server, self.dialect, said, stream=True, max_tokens=max_tokens)
            self.texts[said] = answer.text

        self.nursery.start_soon(listen)

    async def _post(self) -> None:
        head = {"x-request-id": self.request_id, **self.way.head}
        self.client = await post_victim(
            self.server,
            self.dialect,
            self.phase,
            head,
            stream=self.stream,
            max_tokens=self._max_tokens(),
        )

    # --- the oracle ---

    def victims_forwards(self) -> list[int]:
        """Numbers of the forwards that computed anything for the victim."""
        if not self.phase.is_computed:
            return []
        return [number for number, _ in self.server.rows(self.first_sequence + 1)]

    def _check_work(self) -> None:
        """Nothing was begun after the server knew, and nothing is held."""
        forwards, stats = self.victims_forwards(), self.server.engine.engine.stats
        if self.outcome != "completed":
            first = self.held_at - self.phase.forward + 1
            last = min(
                self.held_at,
                first + LAST_FORWARD - 1 if self.phase.name == "tail" else self.held_at,
            )
            assert forwards == (list(range(first, last + 1)) if self.phase.is_computed else [])
        if self.outcome == "cancelled":
            assert self.forwards_at_cancel == forwards
        assert (stats.running, stats.waiting) == (0, 0)
        assert not self.server.model.live_states
        assert not self.server.state.live

    def _check_neighbours(self) -> None:
        """They say what they would have said, and the next in the queue starts in the next step."""
        asked = {"stays ": STAYS, "next ": NEXT} | (
            {"before ": SHORT} if self.phase.name == "queue" else {}
        )
        assert self.texts == {said: (said * 40)[:tokens] for said, tokens in asked.items()}
        next_sequence = self.first_sequence + (
            2 if len(asked) == 3 or self.phase.is_computed else 1
        )
        started = self.server.rows(next_sequence)[0][0]
        if self.phase.name == "queue":
            *_, (last_of_before, _) = self.server.rows(self.first_sequence + 1)
            if self.outcome != "completed":
                assert started == last_of_before + 1
        elif self.phase.name == "tail" or not self.phase.is_computed:
            assert started == self.held_at
        elif self.outcome != "completed":
            assert started == self.held_at + 1

    def _check_told(self, lines: RequestLines, before: dict[str, float]) -> None:
        """Metrics and the one log line agree on how and where it ended."""
        completed = self.outcome == "completed"
        phase = "write" if completed else self.phase.told
        # Nobody knows whether a stream is wanted before the body has been read.
        stream = self.stream and phase != "body"
        (line,) = [line for line in lines.requests if line["id"] == self.request_id]
        assert (line["outcome"], line["phase"]) == (self.outcome, phase)
        assert (line["protocol"], line["stream"]) == (self.dialect.name, stream)
        if not completed:
            assert line["generated_tokens"] == self.phase.generated
        assert len(lines.requests) == len(self.texts) + 1
        assert not lines.complaints

        after = figures(self.server)

        def grown(name: str) -> float:
            return after.get(name, 0) - before.get(name, 0)

        labels = (
            f'outcome="{self.outcome}",protocol="{self.dialect.name}",'
            f'stream="{"true" if stream else "false"}"'
        )
        others = len(self.texts) if completed and stream else 0
        assert grown(f"ds4trio_requests_total{{{labels}}}") == 1 + others
        gone = {phase: 1} if self.outcome == "client_gone" else {}
        for each in Told:
            name = f'ds4trio_disconnects_total{{phase="{each}"}}'
            assert grown(name) == gone.get(each, 0), name
        assert grown("ds4trio_wasted_generated_tokens_total") <= 1
        assert grown("ds4trio_wasted_prompt_tokens_total") <= CHUNK
