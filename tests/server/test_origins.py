"""What browsers are made to send, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import headers, saying, serving

from ds4trio.config import Settings
from ds4trio.errors import ConfigError, ForbiddenError, MisdirectedError
from ds4trio.opening import open_service
from ds4trio.server import serve
from ds4trio.server.origins import Origins
from ds4trio.testing import END_ID

if TYPE_CHECKING:
    from pathlib import Path

    import trio

HI = saying("Hi", END_ID)
CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
PAGE = "https://chat.example.org"

OURS = ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:1", "a.localhost", "[::1]:8000"]
OURS += ["localhost.", "192.168.1.5", "0.0.0.0:8000", ""]
STRANGERS = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
]
STRANGERS += ["notlocalhost", "127.0.0.1@evil.example", "evil.example.", "[::1].evil.example", "é"]


def answers(origins: Origins, host: str, local_address: str | None) -> bool:
    try:
        origins.check("GET", {b"host": host.encode("latin-1")}, local_address)
    except MisdirectedError:
        return False
    return True


@pytest.mark.parametrize("local_address", ["127.0.0.1", "::1", "127.9.9.9", "::ffff:127.0.0.1"])
def test_a_page_cannot_make_its_own_name_ours(local_address: str) -> None:
    origins = Origins.from_settings((), ())
    assert [host for host in OURS if not answers(origins, host, local_address)] == []
    assert [host for host in STRANGERS if answers(origins, host, local_address)] == []


@pytest.mark.parametrize("local_address", [None, "192.168.1.5", "/run/socket"])
def test_elsewhere_any_name_will_do_until_names_are_set(local_address: str | None) -> None:
    anyone = Origins.from_settings((), ())
    assert all(answers(anyone, host, local_address) for host in OURS + STRANGERS)
    some = Origins.from_settings(("Models.Example.org",), ())
    assert answers(some, "models.example.org:8000", local_address)
    assert not answers(some, "evil.example", local_address)
    assert all(answers(some, host, local_address) for host in OURS)


@given(st.text(st.characters(max_codepoint=255)))
def test_any_host_is_answered_or_refused(host: str) -> None:
    answers(Origins.from_settings((), ()), host, "127.0.0.1")


@pytest.mark.parametrize("host", ["", "a b", "http://a", "a:80", "*", "a/b", "é"])
def test_a_name_that_is_none(host: str) -> None:
    with pytest.raises(ConfigError, match="allowed_hosts"):
        Origins.from_settings((host,), ())


@pytest.mark.parametrize(
    "page",
    ["", "*", "null", "chat.example.org", PAGE + "/", PAGE + "/a", "https://", "https://a b"],
)
def test_an_origin_that_is_none(page: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        Origins.from_settings((), (page,))


#: What a browser says of who asks, and whether that may change something.
ASKERS: list[tuple[dict[bytes, bytes], bool]] = [
    ({}, True),  # no browser
    ({b"origin": b"http://localhost:8000"}, True),
    ({b"origin": b"https://localhost:8000"}, True),  # behind a proxy with TLS
    ({b"origin": b"http://localhost:8000", b"sec-fetch-site": b"same-origin"}, True),
    ({b"origin": b"https://elsewhere", b"sec-fetch-site": b"same-origin"}, True),  # another proxy
    ({b"origin": b"chrome-extension://abc", b"sec-fetch-site": b"none"}, True),
    ({b"origin": PAGE.encode(), b"sec-fetch-site": b"cross-site"}, True),
    ({b"origin": PAGE.encode()}, True),
    ({b"origin": b"null"}, False),
    ({b"origin": b""}, False),
    ({b"origin": b"http://localhost:3000"}, False),
    ({b"origin": b"http://localhost:3000", b"sec-fetch-site": b"same-site"}, False),
    ({b"origin": b"https://evil.example", b"sec-fetch-site": b"cross-site"}, False),
    ({b"origin": b"https://evil.example"}, False),
    ({b"origin": PAGE.encode() + b".evil.example"}, False),
    ({b"origin": b"http://chat.example.org"}, False),
]


@pytest.mark.parametrize(("told", "allowed"), ASKERS)
def test_only_some_pages_may_change_something(told: dict[bytes, bytes], allowed: bool) -> None:
    origins = Origins.from_settings((), (PAGE,))
    told = {b"host": b"localhost:8000", **told}
    for method in ("GET", "HEAD", "OPTIONS"):
        origins.check(method, told, "127.0.0.1")
    for method in ("POST", "DELETE"):
        if allowed:
            origins.check(method, told, "127.0.0.1")
        else:
            with pytest.raises(ForbiddenError, match="cors_origins"):
                origins.check(method, told, "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "with_keys", "warned"),
    [
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("localhost", False, False),
        ("0.0.0.0", False, True),
        ("192.168.1.5", False, True),
        ("models.example.org", False, True),
        ("0.0.0.0", True, False),
    ],
)
async def test_listening_for_others_without_keys_is_warned_of(
    host: str,
    with_keys: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    async def listen(*_: object, task_status: trio.TaskStatus[list[str]], **__: object) -> None:
        task_status.started([f"http://{host}:8000"])

    monkeypatch.setattr(serve, "_serve", listen)
    keys = tmp_path / "keys"
    keys.write_text("sk-a")
    settings = Settings(host=host, api_keys_file=keys if with_keys else None)
    with caplog.at_level("INFO"):
        await serve.serve_until_signal(settings, open_service)
    assert f"listening on http://{host}:8000" in caplog.text
    assert ("anyone who can reach" in caplog.text) is warned


async def test_a_rebound_name_is_refused_before_anything_else() -> None:
    async with serving(HI) as server:
        for method, path in (("GET", "/"), ("GET", "/health"), ("POST", CHAT)):
            async with await server.connect() as client:
                await client.request(method, path, headers={"host": "evil.example"})
                status, body = await client.response()
                assert status == 421
                assert b"allowed_hosts" in body
        assert not server.model.forwards


async def test_a_strangers_page_computes_nothing() -> None:
    async with serving(HI) as server, await server.connect() as client:
        # What a page may send without a preflight: a body of no type.
        told = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
        await client.request("POST", CHAT, b'{"messages":[{"role":"user","content":"Hi"}]}', told)
        head = await client.head()
        assert head.status_code == 403
        assert not any("access-control" in name for name in headers(head))
        assert not server.model.forwards


async def test_our_page_elsewhere_may_ask_and_read() -> None:
    async with serving(HI, cors_origins=(PAGE,)) as server, await server.connect() as client:
        asking = {
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-request-id",
        }
        await client.request("OPTIONS", CHAT, headers=asking)
        head = await client.head()
        await client.rest()
        told = headers(head)
        assert head.status_code == 200
        assert told["access-control-allow-origin"] == PAGE
        assert "authorization" in told["access-control-allow-headers"]
        assert "POST" in told["access-control-allow-methods"]
        client.again()
        await client.post(CHAT, ASKED, {"origin": PAGE, "sec-fetch-site": "cross-site"})
        head = await client.head()
        assert b"[DONE]" in await client.rest()
        assert headers(head)["access-control-allow-origin"] == PAGE
        client.again()
        await client.request("GET", "/nowhere", headers={"origin": PAGE})
        assert headers(await client.head())["access-control-allow-origin"] == PAGE


async def test_without_the_setting_no_page_may_read() -> None:
    async with serving(HI) as server, await server.connect() as client:
        asking = {"origin": PAGE, "access-control-request-method": "POST"}
        for method, path in (("OPTIONS", CHAT), ("GET", "/v1/models")):
            await client.request(method, path, headers=asking)
            head = await client.head()
            await client.rest()
            assert not any("access-control" in name for name in headers(head))
            client.again()
