"""A reader that stalls costs nobody else anything, and is cut at its deadline.

Time is Trio's mock clock: the patience of 30 s takes no time here.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import trio
import trio.testing
from dialects import DIALECTS, Dialect, ask, every_dialect
from matrix import RequestLines, figures, request_lines
from serving import Baseline, Client, Server, repeating, serving, until

from ds4trio.server.record import Outcome
from ds4trio.server.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from trio.testing import MockClock

ID = "staller"
STALL_S = 30.0
#: How far a sequence may be ahead of its reader: open_engine's ``max_unread_tokens``, and half as
#: many that were taken without the worker having heard of it.
AHEAD_TOKENS = 64 + 32
#: Of the victim: each of its tokens is a byte that JSON spells in six, so that an answer of a few
#: thousand tokens is more than the sockets hold.
ESCAPED = 1
ANSWER_TOKENS = 7000


def script(token_ids: Sequence[int]) -> int:
    """Whoever is greeted with X gets escapes; all others are told what they said."""
    return ESCAPED if token_ids[7] == ord("X") else repeating(token_ids)


async def stalled(
    server: Server, dialect: Dialect, *, stream: bool, max_tokens: int = ANSWER_TOKENS
) -> Client:
    """A client whose answer has filled all buffers, so that the server waits for it."""
    client = await server.connect(receive_buffer=2048)
    fields = dialect.fields("X", stream=stream, max_tokens=max_tokens)
    with writes_counted() as unfinished:
        await client.post(dialect.path, fields, {"x-request-id": ID})
        # All tasks are blocked, one of them in a write.
        await until(lambda: unfinished)
    return client


@contextmanager
def writes_counted() -> Iterator[list[Transport]]:
    """Yields the transports that are being written to."""
    unfinished: list[Transport] = []
    real_write = Transport.write

    async def write(transport: Transport, data: bytes) -> None:
        unfinished.append(transport)
        try:
            await real_write(transport, data)
        finally:
            unfinished.remove(transport)

    with mock.patch.object(Transport, "write", write):
        yield unfinished


def one_line(lines: RequestLines) -> tuple[str, str]:
    (line,) = [line for line in lines.requests if line["id"] == ID]
    assert not lines.complaints
    return line["outcome"], line["phase"]


async def wait_for_the_deadline(clock: MockClock, _client: Client) -> None:
    clock.jump(STALL_S)


async def fin(_clock: MockClock, client: Client) -> None:
    await client.fin()


async def rst(_clock: MockClock, client: Client) -> None:
    await client.rst()


WAYS: dict[str, tuple[Callable[[MockClock, Client], Awaitable[None]], str]] = {
    "stall": (wait_for_the_deadline, "stalled"),
    "stall then FIN": (fin, "client_gone"),
    "stall then RST": (rst, "client_gone"),
}


@every_dialect
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_stalled_reader(
    mock_clock: MockClock, dialect: Dialect, stream: bool, way: str
) -> None:
    """In a stream the sequence pauses; it does not run far ahead of what its reader can have."""
    leave, outcome = WAYS[way]
    with request_lines() as lines:
        async with serving(
            script, context_tokens=8192, client_stall_timeout_s=STALL_S, heartbeat_s=1000
        ) as server:
            baseline = await Baseline.take()
            client = await stalled(server, dialect, stream=stream)
            forwards = len(server.rows(0))
            stats = server.engine.engine.stats
            assert forwards < ANSWER_TOKENS / 2 if stream else forwards == ANSWER_TOKENS
            # Others have their answers in the meantime, and go on having them.
            assert (await ask(server, dialect, "others ", stream=True, max_tokens=9)).text == (
                "others ot"
            )
            if way == "stall":
                mock_clock.jump(STALL_S * 0.9)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert ID in server.state.live
            await leave(mock_clock, client)
            await server.idle()
            assert len(server.rows(0)) <= forwards + AHEAD_TOKENS
            assert one_line(lines) == (outcome, "decode" if stream else "write")
            phase = "decode" if stream else "write"
            assert figures(server)[f'ds4trio_disconnects_total{{phase="{phase}"}}'] == 1
            assert (stats.running, stats.waiting) == (0, 0)
            assert not server.model.live_states
            client.stream.socket.close()
            assert await Baseline.take() == baseline


@every_dialect
async def test_what_a_stalled_reader_holds_is_bounded(
    mock_clock: MockClock, dialect: Dialect
) -> None:
    """All that was made for it: in the sockets, in the write under way, and not yet read."""
    async with serving(script, context_tokens=8192, heartbeat_s=1000) as server:
        client = await stalled(server, dialect, stream=True)
        exchange = server.state.live[ID]
        made = len(server.rows(0)) + AHEAD_TOKENS
        exchange.end(Outcome.CANCELLED)
        await server.idle()
        assert len(server.rows(0)) <= made
        sent = b""
        with suppress(trio.BrokenResourceError):
            while data := await client.stream.receive_some(65536):
                sent += data
        assert sent.count(b"\\u0001") <= made
        assert len(sent) + AHEAD_TOKENS * len(sent) / max(1, sent.count(b"\\u0001")) < 1 << 20


async def test_a_sequence_that_was_paused_goes_on(mock_clock: MockClock) -> None:
    """A patient client that was only slow gets everything."""
    dialect = DIALECTS[0]
    async with serving(script, context_tokens=8192, client_stall_timeout_s=STALL_S) as server:
        client = await stalled(server, dialect, stream=True, max_tokens=400)
        mock_clock.jump(STALL_S / 2)
        status, body = await client.response()
        assert status == 200
        assert dialect.read(body, stream=True).text == chr(ESCAPED) * 400


async def test_a_reader_that_drips_is_cut(mock_clock: MockClock) -> None:
    """A byte now and then is progress, but not enough of it: others want the place."""
    with request_lines() as lines:
        async with serving(
            script, context_tokens=8192, client_stall_timeout_s=STALL_S, heartbeat_s=1000
        ) as server:
            client = await stalled(server, DIALECTS[0], stream=True)
            for _ in range(40):
                mock_clock.jump(STALL_S / 2)
                await trio.testing.wait_all_tasks_blocked(0.002)
                if ID not in server.state.live:
                    break
                await client.stream.receive_some(1024)
                await trio.testing.wait_all_tasks_blocked(0.002)
            await server.idle()
            assert one_line(lines) == ("stalled", "decode")
            assert not server.model.live_states
