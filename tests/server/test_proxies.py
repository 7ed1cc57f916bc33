"""nginx and HAProxy in front, with the files of examples/deploy but for ports and paths."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from dialects import DIALECTS, prompt_tokens, whole_or_stream
from launching import free_port
from serving import Client, Server, serving, until

from ds4trio.server.record import Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
HOST = "127.0.0.1"
CHAT = DIALECTS[0]
CHUNK = 16
#: A prompt of four chunks.
SAID = "x" * (4 * CHUNK - prompt_tokens(""))
#: The forward in which the worker is held while the client leaves.
MOMENTS = {"queue": 1, "prefill": 2, "decode": 8}

every_proxy = pytest.mark.parametrize("proxy", ["nginx", "haproxy"])


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def nginx(folder: Path, port: int, replicas: dict[str, str]) -> list[str]:
    file = folder / "nginx.conf"
    changes = {
        "listen 80;": f"listen {HOST}:{port};",
        "worker_processes auto;": "worker_processes 1;",
        "/run/nginx.pid": str(folder / "pid"),
        "error_log /var/log/nginx/error.log": "error_log stderr",
        "access_log /var/log/nginx/access.log;": "access_log off;"
        + "".join(
            f" {kind}_temp_path {folder / kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        ),
    }
    file.write_text(replaced((DEPLOY / file.name).read_text(), changes | replicas))
    return ["nginx", "-e", "stderr", "-c", str(file), "-g", "daemon off;"]


def haproxy(folder: Path, port: int, replicas: dict[str, str]) -> list[str]:
    file = folder / "haproxy.cfg"
    changes = {"bind :80\n": f"bind {HOST}:{port}\n"} | replicas
    file.write_text(replaced((DEPLOY / file.name).read_text(), changes))
    return ["haproxy", "-f", str(file)]


COMMANDS = {"nginx": nginx, "haproxy": haproxy}


@asynccontextmanager
async def in_front(
    proxy: str, folder: Path, one: Server, two: Server
) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """The proxy, listening; what connects to it."""
    if shutil.which(proxy) is None:
        pytest.skip(f"{proxy} is not installed")
    port = free_port()
    replicas = {f"{HOST}:8001": f"{HOST}:{one.port}", f"{HOST}:8002": f"{HOST}:{two.port}"}
    command = COMMANDS[proxy](folder, port, replicas)
    async with trio.open_nursery() as nursery:
        with (folder / "stderr").open("wb") as stderr:
            process = await nursery.start(
                partial(trio.run_process, command, check=False, stderr=stderr)
            )

        async def connect() -> Client:
            while True:
                assert process.poll() is None, (folder / "stderr").read_text()
                try:
                    return await Client.connect(HOST, port)
                except OSError:
                    await trio.testing.wait_all_tasks_blocked(0.001)

        try:
            yield connect
        finally:
            process.terminate()


@every_proxy
@whole_or_stream
@pytest.mark.parametrize("leave", [Client.fin, Client.rst], ids=["fin", "rst"])
@pytest.mark.parametrize("phase", MOMENTS)
async def test_a_client_that_leaves_the_proxy_ends_its_job(
    proxy: str,
    stream: bool,
    leave: Callable[[Client], Awaitable[None]],
    phase: str,
    tmp_path: Path,
) -> None:
    """Before the forward in which it leaves is over."""
    held = MOMENTS[phase]
    async with (
        serving(gated=True, prefill_chunk_tokens=CHUNK, max_running=1) as server,
        in_front(proxy, tmp_path, server, server) as connect,
    ):
        if phase == "queue":
            first = await server.connect()
            await first.post(CHAT.path, CHAT.fields("first", stream=False, max_tokens=1))
            await server.gate.reached(1)
        client = await connect()
        fields = CHAT.fields(SAID, stream=stream, max_tokens=2000)
        await client.post(CHAT.path, fields, {"x-request-id": "the-one"})
        if phase == "queue":
            await until(lambda: server.engine.engine.stats.waiting == 1)
        else:
            server.gate.release(held - 1)
            await server.gate.reached(held)
        await trio.testing.wait_all_tasks_blocked()
        record = server.state.live["the-one"].record
        await leave(client)
        await until(lambda: record.outcome is not None)
        assert (record.outcome, record.phase.value) == (Outcome.CLIENT_GONE, phase)
        server.gate.open()
        await server.idle()
        assert len(server.rows(1 if phase == "queue" else 0)) == (0 if phase == "queue" else held)


@every_proxy
async def test_events_go_out_as_they_come(proxy: str, tmp_path: Path) -> None:
    async with (
        serving(gated=True, prefill_chunk_tokens=CHUNK) as server,
        in_front(proxy, tmp_path, server, server) as connect,
        await connect() as client,
    ):
        await client.post(CHAT.path, CHAT.fields(SAID, stream=True, max_tokens=8))
        assert (await client.head()).status_code == 200
        said = b""
        for tokens in range(1, 4):
            server.gate.release(4 if tokens == 1 else 1)
            said += await client.read_until(
                lambda body: len(CHAT.text_so_far(said + body)) == tokens  # noqa: B023 - called now
            )
        server.gate.open()
        assert CHAT.read(said + await client.rest(), stream=True).text == "x" * 8


@every_proxy
async def test_a_session_stays_with_its_replica(proxy: str, tmp_path: Path) -> None:
    async with (
        serving() as one,
        serving() as two,
        in_front(proxy, tmp_path, one, two) as connect,
    ):

        async def replica(headers: dict[str, str]) -> int:
            """Which of them computes."""
            before = len(one.model.forwards), len(two.model.forwards)
            async with await connect() as client:
                await client.post(CHAT.path, CHAT.fields("Hi", stream=False, max_tokens=1), headers)
                assert (await client.response())[0] == 200
            after = len(one.model.forwards), len(two.model.forwards)
            (index,) = [i for i in range(2) if after[i] > before[i]]
            return index

        for name, prefix in [("x-session-id", ""), ("x-api-key", ""), ("authorization", "Bearer ")]:
            chosen = {n: await replica({name: f"{prefix}{n}"}) for n in range(16)}
            assert set(chosen.values()) == {0, 1}
            for n in (0, 5):
                assert await replica({name: f"{prefix}{n}"}) == chosen[n]
        # The session counts more than the key.
        other = {
            await replica({"x-session-id": "s", "authorization": f"Bearer {n}"}) for n in range(8)
        }
        assert len(other) == 1
        assert len({await replica({}) for _ in range(4)}) == 1
