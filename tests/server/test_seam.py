"""Our connection in hypercorn's place, under hypercorn's own command line and its API."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import hypercorn.config
import hypercorn.trio.run
import pytest
import trio
from connecting import GET, Client, Receive, Recorder, Scope, Send, chunk, post, start_stream
from hypercorn.config import Config
from hypercorn.trio import serve
from hypercorn.trio.tcp_server import TCPServer

from ds4trio.errors import ConfigError
from ds4trio.server import hypercorn_seam
from ds4trio.server.connection import ConnectionLimits

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.server.asgi_types import Application


@pytest.fixture(autouse=True)
def stock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypercorn is as it was when the test is over."""
    for owner, name in (
        (hypercorn.trio.run, "TCPServer"),
        (hypercorn.trio.run, "raise_shutdown"),
        (hypercorn.config.Config, "alpn_protocols"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def with_lifespan(app: Application) -> Any:  # noqa: ANN401 - hypercorn's types are narrower
    """An application that installs the seam when it is started."""

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        await receive()
        hypercorn_seam.install(ConnectionLimits())
        scope["state"]["started"] = True
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return whole


def config(**settings: object) -> Config:
    made = Config()
    made.bind = ["127.0.0.1:0"]
    made.loglevel = "ERROR"
    made.graceful_timeout = 0.2
    for name, value in settings.items():
        setattr(made, name, value)
    return made


async def connect(bound: list[str]) -> Client:
    return Client(await trio.open_tcp_stream("127.0.0.1", int(bound[0].rsplit(":", 1)[1])))


async def forever(_scope: Scope, receive: Receive, send: Send) -> None:
    await start_stream(send)
    while True:
        await chunk(send, bytes(100_000))


async def test_hypercorn_serves_with_our_connection() -> None:
    """A disconnect behind a pipelined request, which stock hypercorn never sees; then shutdown with
    a stalled reader, which it does not survive in time."""
    app = Recorder(forever)
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(
            partial(serve, with_lifespan(app), config(), shutdown_trigger=stopping.wait)
        )
        leaver = await connect(bound)
        await leaver.send(GET + GET)
        await leaver.until(b"\r\n\r\n")
        await leaver.fin()
        await app.left.wait()
        assert app.reasons == ["closed"]
        staller, idler = await connect(bound), await connect(bound)
        await staller.send(GET)
        await staller.until(b"\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.01)
        stopping.set()
        assert await idler.rest() == b""
    assert app.paths == ["/", "/"]
    await staller.fin()
    await idler.fin()


async def test_the_lifespans_state_reaches_the_scope_and_draining_says_close() -> None:
    states: list[object] = []
    going, stopping = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        states.append(scope["state"])
        began.set()
        await going.wait()
        await start_stream(send)
        await send({"type": "http.response.body"})

    began = trio.Event()
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(
            partial(
                serve,
                with_lifespan(app),
                config(graceful_timeout=60),
                shutdown_trigger=stopping.wait,
            )
        )
        client = await connect(bound)
        await client.send(GET)
        await began.wait()
        stopping.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        going.set()
        assert (await client.answer()).headers[b"connection"] == b"close"
        await client.fin()
    assert states == [{"started": True}]


async def test_tls_offers_http_1_1_only(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    files = {"certfile": str(tmp_path / "both.pem"), "keyfile": str(tmp_path / "both.pem")}
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    stopping = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start_stream(send)
        await send({"type": "http.response.body", "body": scope["scheme"].encode()})

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(
            partial(serve, with_lifespan(app), config(**files), shutdown_trigger=stopping.wait)
        )
        stream = trio.SSLStream(
            (await connect(bound)).stream,
            context,
            server_hostname="localhost",
            https_compatible=True,
        )
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() == "http/1.1"
        client = Client(stream)
        await client.send(GET)
        assert (await client.answer()).body == b"https"
        await client.fin()
        stopping.set()


# Installing


def test_installing_twice_changes_the_limits_only() -> None:
    hypercorn_seam.install(ConnectionLimits())
    hypercorn_seam.install(ConnectionLimits(keep_alive_s=1))
    assert vars(hypercorn.trio.run)["TCPServer"].limits.keep_alive_s == 1


def test_another_hypercorn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # As it is before anything is installed, which an earlier test may have done.
    monkeypatch.setattr(hypercorn.trio.run, "TCPServer", TCPServer)
    monkeypatch.setattr(hypercorn_seam, "version", lambda _: "0.19.0")
    with pytest.raises(ConfigError, match=r"0\.19\.0"):
        hypercorn_seam.install(ConnectionLimits())


class OtherShape:
    def __init__(self, app: object, stream: object) -> None: ...


@pytest.mark.parametrize("other", [None, OtherShape, 3])
def test_a_hypercorn_of_another_shape_is_refused(
    other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypercorn.trio.run, "TCPServer", other)
    with pytest.raises(ConfigError, match="not as expected"):
        hypercorn_seam.install(ConnectionLimits())
    assert vars(hypercorn.trio.run)["TCPServer"] is other


# The command line

MODULE = """
from ds4trio.server.connection import ConnectionLimits
from ds4trio.server.hypercorn_seam import install

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        install(ConnectionLimits())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body, "more_body": True})
    print(scope["path"], message["reason"], flush=True)
"""


async def test_under_the_hypercorn_command(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(MODULE)
    (listening,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listening.socket.getsockname()[1]
    command = [sys.executable, "-m", "hypercorn", "-k", "trio", "tiny:app"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                [*command, "--bind", f"fd://{listening.socket.fileno()}", "--workers", "1"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                capture_stdout=False,
                stderr=subprocess.PIPE,
                pass_fds=[listening.socket.fileno()],
            )
        )
        client = Client(await trio.open_tcp_stream("127.0.0.1", port))
        await client.send(post(b"body") + GET.replace(b" / ", b" /second ") + b"\r\n")
        assert b"body" in await client.until(b"body\r\n")
        await client.fin()
        said = b""
        while not said.endswith(b"\n"):
            said += await process.stdout.receive_some()
        assert said == b"/ closed\n"
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    await listening.aclose()
