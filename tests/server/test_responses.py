"""Responses that outlive their request: kept, gone on from, made in the background."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
import trio
from openai.types.responses import Response
from pydantic import TypeAdapter
from serving import ANSWER_MARK, Client, Server, repeating, saying, serving, until

from ds4trio.server.response_store import ResponseFolder, ResponseStore
from ds4trio.server.responses import Responses
from ds4trio.testing import END_ID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PATH = "/v1/responses"
strict_response = TypeAdapter(Response)


def say_ho(token_ids: Sequence[int]) -> int:
    """A script that answers ``Ho`` also where it has answered before."""
    text = bytes(i for i in token_ids if i < 256)
    return {b"": ord("H"), b"H": ord("o")}.get(text.rpartition(ANSWER_MARK)[2], END_ID)


async def call(
    server: Server,
    method: str,
    path: str,
    fields: object = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    async with await server.connect() as client:
        if fields is None:
            await client.request(method, path, b"", headers)
        else:
            await client.post(path, fields, headers)
        return await client.json()


async def ask(server: Server, **fields: object) -> Any:  # noqa: ANN401 - JSON
    status, body = await call(server, "POST", PATH, {"input": "Hi", **fields})
    assert status == 200, body
    strict_response.validate_python(body)
    return body


async def fetch(server: Server, response_id: str, rest: str = "") -> tuple[int, Any]:
    return await call(server, "GET", f"{PATH}/{response_id}{rest}")


def text_of(response: Any) -> str:  # noqa: ANN401 - JSON
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def events_of(body: bytes) -> list[Any]:
    """The data of all whole events."""
    blocks = body.decode().split("\n\n")[:-1]
    return [json.loads(block.partition("data: ")[2]) for block in blocks]


def has(kind: str) -> Any:  # noqa: ANN401 - a function
    return lambda body: any(event["type"] == kind for event in events_of(body))


# --- kept ---


async def test_an_answer_can_be_fetched_and_deleted() -> None:
    async with serving(saying("Ho", END_ID)) as server:
        response = await ask(server)
        assert await fetch(server, response["id"]) == (200, response)
        status, items = await fetch(server, response["id"], "/input_items")
        assert status == 200
        assert [item["content"][0]["text"] for item in items["data"]] == ["Hi"]
        status, body = await call(server, "DELETE", f"{PATH}/{response['id']}")
        assert (status, body["deleted"]) == (200, True)
        status, body = await fetch(server, response["id"])
        assert (status, body["error"]["type"]) == (404, "not_found_error")
        assert (await call(server, "DELETE", f"{PATH}/{response['id']}"))[0] == 404


async def test_an_answer_is_not_kept_if_so_asked() -> None:
    async with serving(saying("Ho", END_ID)) as server:
        response = await ask(server, store=False)
        assert (await fetch(server, response["id"]))[0] == 404


async def test_a_conversation_goes_on_from_an_answer() -> None:
    """The scripted engine's prompts are plain lines, so what was rendered can be read."""
    async with serving(say_ho, prefill_chunk_tokens=1000) as server:
        first = await ask(server)
        second = await ask(server, input="And?", previous_response_id=first["id"])
        third = await ask(server, input="So?", previous_response_id=second["id"])
        assert third["previous_response_id"] == second["id"]
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        await ask(server, input=[reference, {"role": "user", "content": "That"}])
        prompts = [
            bytes(i for row in rows if row.position == 0 for i in row.token_ids if i < 256).decode()
            for rows in server.model.forwards
        ]
    assert [prompt for prompt in prompts if prompt] == [
        "user: Hi\nassistant: ",
        "user: Hi\nassistant: Ho\nuser: And?\nassistant: ",
        "user: Hi\nassistant: Ho\nuser: And?\nassistant: Ho\nuser: So?\nassistant: ",
        "assistant: Ho\nuser: That\nassistant: ",
    ]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        (
            {"previous_response_id": "resp_none"},
            "previous_response_id",
            "previous_response_not_found",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input", None),
    ],
)
async def test_what_is_not_there_cannot_be_gone_on_from(
    fields: dict[str, object], param: str, code: str | None
) -> None:
    async with serving() as server:
        status, body = await call(server, "POST", PATH, {"input": "Hi", **fields})
    assert status == 400
    assert (body["error"]["param"], body["error"]["code"]) == (param, code)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", ["fin", "rst"])
async def test_an_answer_whose_client_left_is_forgotten(stream: bool, leave: str) -> None:
    async with serving(repeating, gated=True) as server:
        client = await server.connect()
        await client.post(PATH, {"input": "Hi", "stream": stream})
        await server.gate.reached(1)
        (response_id,) = server.state.responses._live
        assert (await fetch(server, response_id))[1]["status"] == "in_progress"
        (exchange,) = server.state.live.values()
        await getattr(client, leave)()
        await until(lambda: exchange.record.outcome)
        server.gate.release()
        await server.idle()
        assert (await fetch(server, response_id))[0] == 404
        assert len(server.state.responses.store) == 0


# --- in the background ---


async def test_a_background_answer_needs_no_client() -> None:
    async with serving(saying("Ho", END_ID), gated=True) as server:
        queued = await ask(server, background=True)
        assert (queued["status"], queued["output"]) == ("queued", [])
        await server.gate.reached(1)
        server.gate.release()
        await server.gate.reached(2)
        status, body = await fetch(server, queued["id"])
        assert (status, body["status"]) == (200, "in_progress")
        server.gate.open()
        await server.idle()
        status, body = await fetch(server, queued["id"])
        assert (body["status"], text_of(body)) == ("completed", "Ho")
        strict_response.validate_python(body)
        # A conversation goes on from it as from any other.
        await ask(server, previous_response_id=queued["id"])


@pytest.mark.parametrize("forward", [1, 2])
async def test_a_background_answer_is_cancelled(forward: int) -> None:
    async with serving(repeating, gated=True) as server, trio.open_nursery() as nursery:
        queued = await ask(server, background=True)
        await server.gate.reached(1)
        if forward == 2:
            server.gate.release()
            await server.gate.reached(2)
        cancelled: list[Any] = []

        async def cancel() -> None:
            cancelled.append(await call(server, "POST", f"{PATH}/{queued['id']}/cancel"))

        nursery.start_soon(cancel)
        await until(lambda: server.state.live[queued["id"]].record.outcome)
        server.gate.release()
        await server.idle()
        assert len(server.model.forwards) == forward
        await until(lambda: cancelled)
        ((status, body),) = cancelled
        assert (status, body["status"], body["error"]) == (200, "cancelled", None)
        # Again is no error.
        assert (await call(server, "POST", f"{PATH}/{queued['id']}/cancel")) == (200, body)
        assert await fetch(server, queued["id"]) == (200, body)
        status, refused = await call(
            server, "POST", PATH, {"input": "x", "previous_response_id": queued["id"]}
        )
        assert (status, refused["error"]["param"]) == (400, "previous_response_id")


async def test_a_background_answer_is_cancelled_in_the_queue() -> None:
    async with (
        serving(repeating, gated=True, max_running=1) as server,
        trio.open_nursery() as nursery,
    ):
        first = await ask(server, background=True)
        await server.gate.reached(1)
        second = await ask(server, background=True)
        await until(lambda: server.engine.engine.stats.waiting == 1)
        nursery.start_soon(call, server, "POST", f"{PATH}/{second['id']}/cancel")
        await until(lambda: server.state.live[second["id"]].record.outcome)
        server.gate.release()
        await until(lambda: second["id"] not in server.state.live)
        assert (await fetch(server, second["id"]))[1]["status"] == "cancelled"
        # No forward computed anything for it.
        assert {row.sequence for rows in server.model.forwards for row in rows} == {0}
        server.gate.open()
        await call(server, "POST", f"{PATH}/{first['id']}/cancel")


async def test_only_background_answers_can_be_cancelled() -> None:
    async with serving(saying("Ho", END_ID)) as server:
        response = await ask(server)
        status, _ = await call(server, "POST", f"{PATH}/{response['id']}/cancel")
        assert status == 400
        assert (await call(server, "POST", f"{PATH}/resp_none/cancel"))[0] == 404


async def test_a_deleted_background_answer_ends() -> None:
    async with serving(repeating) as server:
        queued = await ask(server, background=True, max_output_tokens=3000)
        assert (await call(server, "DELETE", f"{PATH}/{queued['id']}"))[0] == 200
        assert not server.state.live
        assert (await fetch(server, queued["id"]))[0] == 404


async def test_a_background_stream_is_read_on_after_its_client_left() -> None:
    async with serving(saying("Hello there", END_ID), gated=True) as server:
        client = await server.connect()
        await client.post(PATH, {"input": "Hi", "stream": True, "background": True})
        server.gate.release(3)
        await client.head()
        seen = events_of(await client.read_until(has("response.output_text.delta")))
        await client.fin()
        response_id = seen[0]["response"]["id"]
        server.gate.open()
        last = seen[-1]["sequence_number"]
        async with await server.connect() as again:
            await again.request("GET", f"{PATH}/{response_id}?stream=true&starting_after={last}")
            _, body = await again.response()
        rest = events_of(body)
        numbers = [event["sequence_number"] for event in seen + rest]
        assert numbers == list(range(len(numbers)))
        assert rest[-1]["type"] == "response.completed"
        deltas = [e["delta"] for e in seen + rest if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "Hello there"
        # And once more, from the first.
        async with await server.connect() as again:
            await again.request("GET", f"{PATH}/{response_id}?stream=true")
            _, body = await again.response()
        assert events_of(body) == seen + rest


async def test_only_background_answers_are_streamed_again() -> None:
    async with serving(saying("Ho", END_ID)) as server:
        response = await ask(server)
        status, body = await fetch(server, response["id"], "?stream=true")
        assert (status, body["error"]["param"]) == (400, "stream")
        assert (await fetch(server, "resp_none", "?stream=true"))[0] == 404
        status, body = await fetch(server, response["id"], "?stream=true&starting_after=x")
        assert (status, body["error"]["param"]) == (400, "starting_after")


async def test_a_background_answer_has_its_own_deadline() -> None:
    async with serving(repeating, request_timeout_s=0.2, context_tokens=10**6) as server:
        queued = await ask(server, background=True)
        await server.idle()
        status, body = await fetch(server, queued["id"])
        assert (status, body["status"], body["error"]["code"]) == (200, "failed", "server_error")


async def test_a_background_answer_that_does_not_fit_has_failed() -> None:
    async with serving(context_tokens=8) as server:
        queued = await ask(server, background=True)
        await server.idle()
        _, body = await fetch(server, queued["id"])
        assert (body["status"], body["error"]["code"]) == ("failed", "context_length_exceeded")


async def test_too_many_background_answers_are_refused_at_once() -> None:
    async with serving(repeating, gated=True, max_running=1, max_waiting=1) as server:
        for _ in range(2):
            await ask(server, background=True)
        status, body = await call(server, "POST", PATH, {"input": "Hi", "background": True})
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        server.gate.open()
        for response_id in list(server.state.live):
            await call(server, "DELETE", f"{PATH}/{response_id}")


async def test_the_end_of_the_server_ends_background_answers(tmp_path: Path) -> None:
    async with serving(repeating, gated=True) as server:
        server.state.responses.folder = ResponseFolder(tmp_path)
        await ask(server, background=True)
        await server.gate.reached(1)
        server.gate.open()
    assert not server.state.live
    assert not server.model.live_states


# --- whose they are ---


async def test_one_key_never_sees_the_answers_of_another(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("mine\ntheirs\n")
    mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("mine", "theirs"))
    async with serving(repeating, gated=True, api_keys_file=keys) as server:
        fields = {"input": "Hi", "background": True}
        _, body = await call(server, "POST", PATH, fields, mine)
        path = f"{PATH}/{body['id']}"
        for method, place in [
            ("GET", path),
            ("GET", f"{path}?stream=true"),
            ("GET", f"{path}/input_items"),
            ("POST", f"{path}/cancel"),
            ("DELETE", path),
        ]:
            assert (await call(server, method, place, None, theirs))[0] == 404, (method, place)
            assert (await call(server, method, place, None, {}))[0] == 401
        asked = {"input": "x", "previous_response_id": body["id"]}
        assert (await call(server, "POST", PATH, asked, theirs))[0] == 400
        assert (await call(server, "GET", path, None, mine))[0] == 200
        server.gate.open()
        assert (await call(server, "DELETE", path, None, mine))[0] == 200


# --- across a restart ---


async def test_with_a_folder_answers_outlive_the_server(tmp_path: Path) -> None:
    async with serving(saying("Ho", END_ID)) as server:
        server.state.responses.folder = ResponseFolder(tmp_path)
        kept = await ask(server)
        gone = await ask(server, previous_response_id=kept["id"])
        await until(lambda: len(list(tmp_path.glob("*.json"))) == 2)
        await call(server, "DELETE", f"{PATH}/{gone['id']}")
        await until(lambda: len(list(tmp_path.glob("*.json"))) == 1)
    (tmp_path / "resp_broken.json").write_text("{")
    async with serving(saying("Ho", END_ID)) as server:
        server.state.responses = Responses(
            ResponseStore(), ResponseFolder(tmp_path), server.state.responses.jobs
        )
        assert await fetch(server, kept["id"]) == (200, kept)
        assert (await fetch(server, gone["id"]))[0] == 404
        await ask(server, previous_response_id=kept["id"])


# --- as the official client asks ---


async def test_the_official_client_uses_all_of_it() -> None:
    async with (
        serving(say_ho) as server,
        openai.AsyncOpenAI(api_key="k", base_url=f"{server.url}/v1", max_retries=0) as client,
    ):
        responses = client.responses
        async with responses.stream(model="m", input="Hi") as stream:
            first = await stream.get_final_response()
        assert first.output_text == "Ho"
        queued = await responses.create(
            input="And?", background=True, previous_response_id=first.id
        )
        assert queued.status == "queued"
        stream_again = await responses.retrieve(queued.id, stream=True)
        types = [event.type async for event in stream_again]
        assert types[0] == "response.created"
        assert types[-1] == "response.completed"
        assert (await responses.retrieve(queued.id)).output_text == "Ho"
        assert (await responses.cancel(queued.id)).status == "completed"
        page = await responses.input_items.list(queued.id)
        assert [item.type for item in page.data] == ["message"]
        await responses.delete(queued.id)
        with pytest.raises(openai.NotFoundError):
            await responses.retrieve(queued.id)


async def test_a_client_that_reads_nothing_costs_the_answer_nothing() -> None:
    """Whoever follows a background answer is apart from it."""
    async with serving(saying("Ho" * 500, END_ID), gated=True) as server:
        client = await Client.connect(server.host, server.port, receive_buffer=4096)
        await client.post(PATH, {"input": "Hi", "stream": True, "background": True})
        server.gate.open()
        await until(lambda: len(server.state.responses.store) == 1)
        await client.rst()
        await server.idle()
