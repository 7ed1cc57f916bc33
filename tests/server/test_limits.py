"""A request's own end: deadlines, cancelling on demand, full queues; and signs of life until then.

Time is Trio's mock clock, so that nothing here waits and nothing depends on the machine's pace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from dialects import (
    DIALECTS,
    Dialect,
    Event,
    ask,
    every_dialect,
    prompt_tokens,
    requests_total,
    stream_events,
    whole_or_stream,
)
from serving import Client, Server, headers, saying, serving, until

from ds4trio.config import Settings
from ds4trio.server.routes import Routes
from ds4trio.server.serve import make_state
from ds4trio.testing import END_ID, ScriptedModel, open_scripted_engine

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

ID = "the-one"
CHUNK = 16
#: A prompt of four chunks, the last of which gives the first token.
CHUNKS = 4
SAID = "x" * (CHUNKS * CHUNK - prompt_tokens(""))

#: The forward in which the worker is held when something happens, and where the request then is.
MOMENTS = {"prefill": (2, "prefill"), "decode": (7, "decode")}
every_moment = pytest.mark.parametrize("moment", MOMENTS)


async def begin(
    server: Server,
    dialect: Dialect,
    *,
    stream: bool,
    head: dict[str, str] | None = None,
    max_tokens: int = 2000,
) -> Client:
    """A long request under way."""
    client = await server.connect()
    fields = dialect.fields(SAID, stream=stream, max_tokens=max_tokens)
    await client.post(dialect.path, fields, {"x-request-id": ID, **(head or {})})
    return client


async def hold_at(server: Server, moment: str) -> int:
    """Go on to the moment, and stay there. The number of forwards begun until then."""
    forward, _ = MOMENTS[moment]
    server.gate.release(forward - 1)
    await server.gate.reached(forward)
    await trio.testing.wait_all_tasks_blocked()
    return forward


async def error_of(client: Client, dialect: Dialect, *, stream: bool) -> tuple[int, str]:
    """Status (200 for a stream that began) and message of an answer that ends with an error."""
    head = await client.head()
    assert headers(head)["x-request-id"] == ID
    body = await client.rest()
    if stream and head.status_code == 200:
        return head.status_code, dialect.last_error(body)
    return head.status_code, json.loads(body)["error"]["message"]


# --- deadlines ---


@every_dialect
@whole_or_stream
@every_moment
@pytest.mark.parametrize("by", ["setting", "header", "the shorter of both"])
async def test_a_deadline_ends_the_work(
    mock_clock: MockClock, dialect: Dialect, stream: bool, moment: str, by: str
) -> None:
    setting = {"setting": 5.0, "header": None, "the shorter of both": 30.0}[by]
    head = {} if by == "setting" else {"x-request-timeout": "5"}
    async with serving(
        gated=True, prefill_chunk_tokens=CHUNK, request_timeout_s=setting, heartbeat_s=1000
    ) as server:
        client = await begin(server, dialect, stream=stream, head=head)
        forwards = await hold_at(server, moment)
        mock_clock.jump(4.99)
        await trio.testing.wait_all_tasks_blocked()
        assert server.state.live[ID].record.outcome is None
        mock_clock.jump(0.02)
        await trio.testing.wait_all_tasks_blocked()
        server.gate.open()
        status, error = await error_of(client, dialect, stream=stream)
        assert status == (200 if stream else 504)
        assert "deadline" in error
        await server.idle()
        assert len(server.model.forwards) == forwards
        told = await server.metrics()
        assert told[requests_total(dialect, stream, "deadline")] == 1
        assert not server.model.live_states


@every_dialect
@whole_or_stream
async def test_a_deadline_in_the_queue(
    mock_clock: MockClock, dialect: Dialect, stream: bool
) -> None:
    async with serving(gated=True, max_running=1, heartbeat_s=1000) as server:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def running() -> None:
                assert (await ask(server, dialect, stream=True, max_tokens=4)).text == "HiHi"

            await server.gate.reached(1)
            head = {"x-request-timeout": "5"}
            client = await begin(server, dialect, stream=stream, head=head)
            await until(lambda: server.engine.engine.stats.waiting == 1)
            mock_clock.jump(5)
            await trio.testing.wait_all_tasks_blocked()
            server.gate.open()
            status, error = await error_of(client, dialect, stream=stream)
        assert status == (200 if stream else 504)
        assert "deadline" in error
        assert {row.sequence for rows in server.model.forwards for row in rows} == {0}


@every_dialect
async def test_a_deadline_in_the_body(mock_clock: MockClock, dialect: Dialect) -> None:
    async with serving() as server, await server.connect() as client:
        head = {
            "content-type": "application/json",
            "x-request-id": ID,
            "x-request-timeout": "5",
        }
        await client.begin("POST", dialect.path, 1000, head)
        await until(lambda: ID in server.state.live)
        mock_clock.jump(5)
        status, error = await error_of(client, dialect, stream=False)
    assert status == 504
    assert "deadline" in error


@every_dialect
async def test_a_body_that_does_not_come(mock_clock: MockClock, dialect: Dialect) -> None:
    async with serving(body_timeout_s=5) as server, await server.connect() as client:
        head = {"content-type": "application/json", "x-request-id": ID}
        await client.begin("POST", dialect.path, 1000, head)
        await until(lambda: ID in server.state.live)
        mock_clock.jump(5)
        status, error = await error_of(client, dialect, stream=False)
        figures = await server.metrics()
    assert status == 408
    assert "5 s" in error
    assert figures[requests_total(dialect, False, "rejected")] == 1


@every_dialect
@whole_or_stream
async def test_a_deadline_that_is_kept(
    mock_clock: MockClock, dialect: Dialect, stream: bool
) -> None:
    async with serving(saying("Hi", END_ID), request_timeout_s=5) as server:
        assert (await ask(server, dialect, stream=stream)).text == "Hi"
        mock_clock.jump(100)
        assert (await ask(server, dialect, stream=stream)).text == "Hi"


@every_dialect
@whole_or_stream
async def test_a_deadline_just_before_the_first_byte(
    mock_clock: MockClock, dialect: Dialect, stream: bool
) -> None:
    """As plain ASGI: the server is about to take the head when the time is up."""
    body = json.dumps(dialect.fields("Hi", stream=stream, max_tokens=2)).encode()
    received = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(received, None) or await trio.sleep_forever()

    async def send(message: dict[str, Any]) -> None:
        if not refused:
            refused.append(message)
            mock_clock.jump(10)
            await trio.sleep_forever()
        sent.append(message)

    async with open_scripted_engine(ScriptedModel()) as engine:
        state = make_state(Settings(request_timeout_s=5))
        state.service = engine
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": dialect.path}
        scope |= {"query_string": b"", "headers": [], "client": None}
        await Routes(state)(scope, receive, send)
    assert refused[0]["status"] == 200
    head, answer = sent
    assert head["status"] == 504
    assert "deadline" in json.loads(answer["body"])["error"]["message"]


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "-inf", "1e999"])
async def test_a_deadline_that_is_none(text: str) -> None:
    async with serving() as server, await server.connect() as client:
        fields = DIALECTS[0].fields("Hi", stream=False)
        await client.post(DIALECTS[0].path, fields, {"x-request-timeout": text})
        status, body = await client.json()
    assert (status, body["error"]["param"]) == (400, "x-request-timeout")


# --- signs of life ---


async def next_event(client: Client) -> Event:
    """One event, in which the server has said all it has to say for now."""
    (event,) = stream_events(await client.read_until(lambda body: body.endswith(b"\n\n")))
    return event


async def said_until_now(client: Client) -> bytes:
    """What the server has written by itself, once it has nothing more to do."""
    await trio.testing.wait_all_tasks_blocked()
    return client.take_ready()


@every_dialect
@every_moment
async def test_signs_of_life_while_the_worker_computes(
    mock_clock: MockClock, dialect: Dialect, moment: str
) -> None:
    async with serving(gated=True, prefill_chunk_tokens=CHUNK, heartbeat_s=10) as server:
        client = await begin(server, dialect, stream=True)
        assert (await client.head()).status_code == 200
        await hold_at(server, moment)
        said = dialect.text_so_far(await said_until_now(client))
        assert said == ("xxx" if moment == "decode" else "")
        for _ in range(3):
            mock_clock.jump(10)
            assert dialect.is_sign_of_life(await next_event(client))
        assert len(server.model.forwards) == MOMENTS[moment][0]
        await client.fin()


@every_dialect
async def test_signs_of_life_in_the_queue(mock_clock: MockClock, dialect: Dialect) -> None:
    """And the answer that follows is as if there had been none."""
    async with serving(gated=True, max_running=1, heartbeat_s=10) as server:
        first = await begin(server, dialect, stream=True)
        await server.gate.reached(1)
        async with await server.connect() as client:
            await client.post(dialect.path, dialect.fields("Hi", stream=True, max_tokens=5))
            await client.head()
            await until(lambda: server.engine.engine.stats.waiting == 1)
            opening = await said_until_now(client)
            for _ in range(3):
                mock_clock.jump(10)
                assert dialect.is_sign_of_life(await next_event(client))
            await first.fin()
            await until(lambda: server.state.live[ID].record.outcome)
            server.gate.open()
            body = opening + await client.rest()
        assert dialect.read(body, stream=True).text == "HiHiH"


@every_dialect
async def test_signs_of_life_while_text_is_held_back(
    mock_clock: MockClock, dialect: Dialect
) -> None:
    """Tokens come, but all of them may be a stop string: to the client it is silence."""
    async with serving(gated=True, heartbeat_s=10) as server, await server.connect() as client:
        fields = dialect.fields("<s>", stream=True, stop="<s><s><s>!", max_tokens=9)
        await client.post(dialect.path, fields)
        await client.head()
        said = b""
        for forward in range(1, 6):
            server.gate.release()
            await server.gate.reached(forward + 1)
            said += await said_until_now(client)
            assert dialect.text_so_far(said) == ""
            mock_clock.jump(10)
            assert dialect.is_sign_of_life(await next_event(client))
        server.gate.open()
        assert dialect.read(said + await client.rest(), stream=True).text == "<s><s><s>"


@every_dialect
async def test_no_sign_of_life_where_there_is_life(mock_clock: MockClock, dialect: Dialect) -> None:
    async with serving(gated=True, heartbeat_s=10) as server, await server.connect() as client:
        await client.post(dialect.path, dialect.fields("Hi", stream=True, max_tokens=20))
        await client.head()
        await server.gate.reached(1)
        body = await said_until_now(client)
        for forward in range(1, 20):
            mock_clock.jump(9)
            server.gate.release()
            await server.gate.reached(forward + 1)
            body += await client.data()
        server.gate.open()
        body += await client.rest()
    *_, last = [body.rindex(token) for token in (b'"H"', b'"i"')]
    events = stream_events(body[: body.rindex(b"\n\n", 0, last) + 2])
    assert not [event for event in events[1:] if dialect.is_sign_of_life(event)]


@every_dialect
async def test_a_whole_answer_is_json_however_long_it_takes(
    mock_clock: MockClock, dialect: Dialect
) -> None:
    async with serving(gated=True, heartbeat_s=1) as server, await server.connect() as client:
        await client.post(dialect.path, dialect.fields("Hi", stream=False, max_tokens=2))
        await server.gate.reached(1)
        for _ in range(5):
            mock_clock.jump(10)
            await trio.testing.wait_all_tasks_blocked()
        server.gate.open()
        _, body = await client.response()
    assert dialect.read(body, stream=False).text == "Hi"


# --- cancelling on demand ---


async def cancel(server: Server, request_id: str, key: str | None = None) -> int:
    head = {"authorization": f"Bearer {key}"} if key else {}
    async with await server.connect() as client:
        await client.request("POST", f"/v1/requests/{request_id}/cancel", headers=head)
        status, _ = await client.json()
    return status


@every_dialect
@whole_or_stream
@every_moment
async def test_cancel_on_demand(dialect: Dialect, stream: bool, moment: str) -> None:
    async with serving(gated=True, prefill_chunk_tokens=CHUNK) as server:
        client = await begin(server, dialect, stream=stream)
        forwards = await hold_at(server, moment)
        statuses: list[int] = []
        forwards_after: list[int] = []

        async def cancel_it() -> None:
            statuses.append(await cancel(server, ID))
            forwards_after.append(len(server.model.forwards))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_it)
            await until(lambda: server.state.live[ID].record.outcome)
            await trio.testing.wait_all_tasks_blocked()
            assert not statuses, "answered before the worker has let go"
            server.gate.open()
        status, error = await error_of(client, dialect, stream=stream)
        assert status == (200 if stream else 499)
        assert "cancelled" in error
        assert statuses == [200]
        assert forwards_after == [forwards]
        assert await cancel(server, ID) == 200, "asking again is no error"
        await server.idle()
        assert len(server.model.forwards) == forwards
        told = await server.metrics()
        assert told[requests_total(dialect, stream, "cancelled")] == 1


async def test_cancel_in_the_queue_and_the_body() -> None:
    async with serving(gated=True, max_running=1) as server, trio.open_nursery() as nursery:
        dialect = DIALECTS[0]
        first = await server.connect()
        await first.post(dialect.path, dialect.fields("Hi", stream=False, max_tokens=3))
        await server.gate.reached(1)
        queued = await begin(server, dialect, stream=False)
        await until(lambda: server.engine.engine.stats.waiting == 1)
        uploading = await server.connect()
        head = {"content-type": "application/json", "x-request-id": "uploading"}
        await uploading.begin("POST", dialect.path, 1000, head)
        await until(lambda: "uploading" in server.state.live)

        assert await cancel(server, "uploading") == 200
        assert (await uploading.json())[0] == 499
        nursery.start_soon(cancel, server, ID)
        await until(lambda: server.state.live[ID].record.outcome)
        server.gate.open()
        assert (await queued.json())[0] == 499
        assert (await first.json())[0] == 200
        assert {row.sequence for rows in server.model.forwards for row in rows} == {0}


async def test_cancel_what_is_not_there() -> None:
    async with serving(saying("Hi", END_ID)) as server:
        assert await cancel(server, "unheard-of") == 404
        async with await server.connect() as client:
            fields = DIALECTS[0].fields("Hi", stream=False)
            await client.post(DIALECTS[0].path, fields, {"x-request-id": ID})
            await client.response()
        await server.idle()
        assert await cancel(server, ID) == 404, "it has ended by itself"
        async with await server.connect() as client:
            await client.request("GET", f"/v1/requests/{ID}/cancel")
            status, _ = await client.json()
        assert status == 405


async def test_a_prefix_of_an_id_is_another_id() -> None:
    dialect = DIALECTS[0]
    async with serving(gated=True) as server:
        clients = {}
        for request_id in ("batch", "batch_1", "batch_10"):
            clients[request_id] = await server.connect()
            fields = dialect.fields("Hi", stream=False, max_tokens=2)
            await clients[request_id].post(dialect.path, fields, {"x-request-id": request_id})
        await until(lambda: len(server.state.live) == 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel, server, "batch_1")
            await until(lambda: server.state.live["batch_1"].record.outcome)
            server.gate.open()
        assert [(await client.json())[0] for client in clients.values()] == [200, 499, 200]


async def test_another_key_cannot_cancel(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("mine\ntheirs\n")
    async with serving(gated=True, api_keys_file=keys) as server, trio.open_nursery() as nursery:
        head = {"authorization": "Bearer mine"}
        client = await begin(server, DIALECTS[0], stream=False, head=head)
        await server.gate.reached(1)
        assert await cancel(server, ID, "theirs") == 404
        assert await cancel(server, ID) == 401
        nursery.start_soon(cancel, server, ID, "mine")
        await until(lambda: server.state.live[ID].record.outcome)
        server.gate.open()
        assert (await client.json())[0] == 499
        await server.idle()
        assert await cancel(server, ID, "theirs") == 404
        assert await cancel(server, ID, "mine") == 200


async def test_an_id_used_again_is_cancelled_again() -> None:
    dialect = DIALECTS[0]
    async with serving(gated=True) as server:
        for number in range(2):
            statuses: list[int] = []

            async def cancel_it(statuses: list[int] = statuses) -> None:
                statuses.append(await cancel(server, ID))

            client = await begin(server, dialect, stream=False)
            await server.gate.reached(number + 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_it)
                exchange = server.state.live[ID]
                await until(lambda: statuses or exchange.record.outcome)  # noqa: B023 - used at once
                server.gate.release()
            assert (statuses, exchange.record.outcome) == ([200], "cancelled")
            assert (await client.json())[0] == 499


# --- too many ---


@every_dialect
@whole_or_stream
async def test_a_full_queue(dialect: Dialect, stream: bool) -> None:
    async with serving(gated=True, max_running=1, max_waiting=1) as server:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def first() -> None:
                assert (await ask(server, dialect, "one", stream=stream, max_tokens=3)).text

            await server.gate.reached(1)
            second = await begin(server, dialect, stream=stream)
            await until(lambda: server.engine.engine.stats.waiting == 1)
            async with await server.connect() as client:
                await client.post(dialect.path, dialect.fields("Hi", stream=stream))
                head = await client.head()
                error = json.loads(await client.rest())["error"]
            assert head.status_code == dialect.overloaded
            assert 1 <= int(headers(head)["retry-after"]) <= 60
            assert "try again" in error["message"]
            # One that leaves frees its place at once, though the worker is busy.
            await second.fin()
            await until(lambda: server.state.live[ID].record.outcome)
            await trio.testing.wait_all_tasks_blocked()
            third = await server.connect()
            await third.post(dialect.path, dialect.fields("Hi", stream=stream, max_tokens=2))
            assert server.gate.entered == 1
            await until(lambda: len(server.state.live) == 3)
            server.gate.open()
            status, _ = await third.response()
            assert status == 200
        told = await server.metrics()
        assert told[requests_total(dialect, stream, "rejected")] == 1


@every_dialect
@whole_or_stream
async def test_a_live_id_is_not_given_twice(dialect: Dialect, stream: bool) -> None:
    async with serving(gated=True) as server:
        first = await begin(server, dialect, stream=stream)
        await server.gate.reached(1)
        async with await begin(server, dialect, stream=stream) as second:
            status, _ = await second.json()
        assert status == 409
        assert server.state.live[ID].record.outcome is None
        await first.fin()
        await until(lambda: server.state.live[ID].record.outcome)
        server.gate.open()
        await server.idle()
        async with await begin(server, dialect, stream=stream, max_tokens=1) as third:
            assert (await third.head()).status_code == 200, "a free one can be used again"


@every_dialect
async def test_a_stream_that_the_server_ends_says_so(dialect: Dialect) -> None:
    """A program that serves and is cancelled leaves no stream that looks complete."""
    async with serving(gated=True) as server:
        client = await Client.connect(server.host, server.port)
        fields = dialect.fields("Hi", stream=True, max_tokens=2000)
        await client.post(dialect.path, fields, {"x-request-id": ID})
        server.gate.release(2)
        await server.gate.reached(3)
    async with client:
        status, error = await error_of(client, dialect, stream=True)
    assert status == 200
    assert "shutting down" in error
