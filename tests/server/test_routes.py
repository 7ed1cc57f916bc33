"""Routes, their errors and headers, over real sockets."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import h11
import pytest
from dialects import DIALECTS, Dialect, every_dialect, requests_total, whole_or_stream
from serving import Client, headers, saying, serving

from ds4trio.testing import END_ID

if TYPE_CHECKING:
    from pathlib import Path

    from serving import Server

JSON = {"content-type": "application/json"}
HI = saying("Hi", END_ID)


async def ask(
    server: Server,
    method: str,
    path: str,
    body: bytes = b"",
    head: dict[str, str] | None = None,
) -> tuple[h11.Response, bytes]:
    async with await server.connect() as client:
        await client.request(method, path, body, head)
        return await client.head(), await client.rest()


def body_of(dialect: Dialect, **fields: object) -> bytes:
    return json.dumps(dialect.fields("Hi", stream=False, **fields)).encode()


# --- what can be read ---


async def test_what_can_be_read() -> None:
    async with serving(HI, served_model_name="org/ours", context_tokens=1234) as server:
        for path, field, value in (
            ("/health", "status", "ok"),
            ("/ready", "status", "ready"),
            ("/v1/models", "object", "list"),
            ("/v1/models/org/ours", "id", "org/ours"),
            ("/v1/models/org%2Fours", "id", "org/ours"),
        ):
            head, body = await ask(server, "GET", path)
            assert head.status_code == 200
            assert headers(head)["content-type"] == "application/json"
            assert json.loads(body)[field] == value
        head, body = await ask(server, "GET", "/metrics")
    assert headers(head)["content-type"].startswith("text/plain; version=")
    assert b"\nds4trio_engine_steps_total 0.0\n" in body


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/nothing"])
async def test_head_is_get_without_the_body(path: str) -> None:
    async with serving(HI) as server:
        got, body = await ask(server, "GET", path)
        async with await server.connect() as client:
            await client.request("HEAD", path)
            asked = await client.head()
            assert await client.rest() == b""
    assert asked.status_code == got.status_code
    assert headers(asked)["content-length"] == str(len(body))


@every_dialect
@pytest.mark.parametrize("suffix", ["", "/", "?beta=true", "/?a=%00&b", "?"])
async def test_slashes_and_queries_are_forgiven(dialect: Dialect, suffix: str) -> None:
    async with serving(HI) as server:
        head, body = await ask(server, "POST", dialect.path + suffix, body_of(dialect), JSON)
    assert head.status_code == 200
    assert dialect.read(body, stream=False).text == "Hi"


# --- ids ---


@pytest.mark.parametrize(
    "path", ["/health", "/metrics", "/v1/models", "/nothing", "chat", "refused"]
)
async def test_every_answer_has_its_id(path: str) -> None:
    chat = DIALECTS[0]
    method, body, kind = "GET", b"", JSON
    if path in ("chat", "refused"):
        method, body, kind = "POST", body_of(chat), {} if path == "chat" else {"content-type": "a"}
        path = chat.path
    async with serving(HI) as server:
        given, _ = await ask(server, method, path, body, {**kind, "x-request-id": "a.B_c:9-0"})
        made, _ = await ask(server, method, path, body, kind)
        again, _ = await ask(server, method, path, body, kind)
    assert headers(given)["x-request-id"] == "a.B_c:9-0"
    assert headers(made)["x-request-id"] != headers(again)["x-request-id"]


@pytest.mark.parametrize("bad", ["", "two words", "a/b", 'a"b', "é", "x" * 129, "a\tb"])
async def test_an_id_that_could_not_stand_in_a_log_is_replaced(bad: str) -> None:
    async with serving(HI) as server:
        head, _ = await ask(server, "GET", "/health", head={"x-request-id": bad})
    assert headers(head)["x-request-id"] != bad
    assert headers(head)["x-request-id"].startswith("req_")


@every_dialect
@whole_or_stream
async def test_the_id_is_in_the_head_of_an_answer(dialect: Dialect, stream: bool) -> None:
    async with serving(HI) as server, await server.connect() as client:
        fields = dialect.fields("Hi", stream=stream)
        await client.post(dialect.path, fields, {"x-request-id": "longest" * 18})
        head = await client.head()
        await client.rest()
    assert headers(head)["x-request-id"] == "longest" * 18


# --- what is refused ---


@every_dialect
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"null", None),
        (b'"text"', None),
        (b"\xff{}", None),
        (b"{}", "the prompt"),
        (b'{"temperature": "hot"}', "temperature"),
        (b"[" * 200_000, None),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_bodies_that_say_nothing(dialect: Dialect, body: bytes, param: str | None) -> None:
    async with serving(HI) as server:
        head, answer = await ask(server, "POST", dialect.path, body, JSON)
        figures = await server.metrics()
        assert not server.model.forwards
    error = json.loads(answer)["error"]
    assert head.status_code == 400
    assert error["message"]
    if "param" in error:
        assert error["param"] == (dialect.prompt_param if param == "the prompt" else param)
    assert figures[requests_total(dialect, False, "rejected")] == 1


@every_dialect
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        (None, 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
    ],
)
async def test_only_json_is_read(dialect: Dialect, kind: str | None, status: int) -> None:
    head = {} if kind is None else {"content-type": kind}
    async with serving(HI) as server:
        got, _ = await ask(server, "POST", dialect.path, body_of(dialect), head)
        figures = await server.metrics()
    assert got.status_code == status
    outcome = "completed" if status == 200 else "rejected"
    assert figures[requests_total(dialect, False, outcome)] == 1


@every_dialect
async def test_compressed_bodies_are_refused(dialect: Dialect) -> None:
    async with serving(HI) as server:
        for encoding, status in (("gzip", 415), ("identity", 200), ("br", 415)):
            head = {**JSON, "content-encoding": encoding}
            got, _ = await ask(server, "POST", dialect.path, body_of(dialect), head)
            assert got.status_code == status


@every_dialect
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_over_the_limit(dialect: Dialect, framing: str) -> None:
    async with serving(HI, max_body_bytes=1000) as server, await server.connect() as client:
        if framing == "length":
            await client.request("POST", dialect.path, b" " * 1001, JSON)
        else:
            await send_chunked(client, dialect.path, [b" " * 500] * 40)
        status, body = await client.json()
        fits = body_of(dialect).ljust(1000)
        got, _ = await ask(server, "POST", dialect.path, fits, JSON)
        figures = await server.metrics()
    assert status == 413
    assert "1000" in body["error"]["message"]
    assert got.status_code == 200
    assert figures[requests_total(dialect, False, "rejected")] == 1


async def send_chunked(client: Client, path: str, pieces: list[bytes]) -> None:
    head = [("host", "localhost"), ("transfer-encoding", "chunked"), *JSON.items()]
    data = client.http.send(h11.Request(method="POST", target=path, headers=head)) or b""
    for piece in pieces:
        data += client.http.send(h11.Data(data=piece)) or b""
    await client.stream.send_all(data + (client.http.send(h11.EndOfMessage()) or b""))


@every_dialect
async def test_a_chunked_body(dialect: Dialect) -> None:
    async with serving(HI) as server, await server.connect() as client:
        body = body_of(dialect)
        await send_chunked(client, dialect.path, [body[:5], body[5:6], body[6:]])
        status, answer = await client.response()
    assert status == 200
    assert dialect.read(answer, stream=False).text == "Hi"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        *[("GET", dialect.path, {"POST"}) for dialect in DIALECTS],
        *[("DELETE", dialect.path, {"POST"}) for dialect in DIALECTS],
        ("POST", "/health", {"GET", "HEAD"}),
        ("PUT", "/metrics", {"GET", "HEAD"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("GET", "/v1/requests/x/cancel", {"POST"}),
    ],
)
async def test_methods_that_are_not_allowed(method: str, path: str, allowed: set[str]) -> None:
    async with serving(HI) as server:
        head, body = await ask(server, method, path)
    assert head.status_code == 405
    assert set(headers(head)["allow"].split(", ")) == allowed
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/page", "/v1", "/v1/chat", "/v1/models/other", "/v1//models", "/%00"]
)
async def test_what_is_not_there(path: str) -> None:
    async with serving(HI) as server:
        head, body = await ask(server, "GET", path)
    assert head.status_code == 404
    assert json.loads(body)["error"]["type"] == "not_found_error"


# --- keys ---


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    return file


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic one"}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"authorization": "Bearer one"}, 200),
        ({"x-api-key": "two"}, 200),
        ({"authorization": "Bearer wrong", "x-api-key": "two"}, 200),
    ],
)
async def test_keys_on_every_route(keys: Path, head: dict[str, str], status: int) -> None:
    async with serving(HI, api_keys_file=keys) as server:
        for dialect in DIALECTS:
            got, body = await ask(server, "POST", dialect.path, body_of(dialect), {**JSON, **head})
            assert got.status_code == status
            if status == 401:
                assert headers(got)["www-authenticate"] == "Bearer"
                assert "error" in json.loads(body)
        for path in ("/metrics", "/v1/models", "/nothing"):
            got, _ = await ask(server, "GET", path, head=head)
            assert got.status_code == (404 if path == "/nothing" and status == 200 else status)
        for path in ("/health", "/ready"):
            got, _ = await ask(server, "GET", path, head=head)
            assert got.status_code == 200, "a load balancer has no key"


@every_dialect
async def test_a_refusal_is_counted_and_logged_without_the_key(
    dialect: Dialect, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(HI, api_keys_file=keys) as server:
        head = {**JSON, "authorization": "Bearer SECRET", "x-request-id": "mine"}
        await ask(server, "POST", dialect.path, body_of(dialect), head)
        _, body = await ask(server, "GET", "/metrics", head={"x-api-key": "one"})
    (line,) = [r for r in caplog.records if r.name == "ds4trio.request"]
    said: dict[str, Any] = line.__dict__["fields"]
    assert (said["id"], said["status"], said["outcome"]) == ("mine", 401, "rejected")
    assert f"{requests_total(dialect, False, 'rejected')} 1.0" in body.decode()
    assert "SECRET" not in caplog.text
