"""Both launches as a user sees them: from the command to the exit code."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from dialects import DIALECTS
from launching import Launched, command, every_launch, free_port, launched
from serving import Client, until
from tiny_llama import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@every_launch
async def test_what_can_end_ends_before_the_server(launch: str, tiny: Path) -> None:
    async with launched(launch, model=tiny, drain_timeout_s=1000, max_running=2) as server:
        await leave_and_be_followed(server)
        short, said = await server.begin_stream(max_tokens=100, ignore_eos=True)
        server.process.terminate()
        assert b'"finish_reason":"length"' in said + await short.rest()
        assert await server.process.wait() == 0
    assert b"Traceback" not in server.stderr
    outcomes = [line.split(b"outcome=")[1].split()[0] for line in server.lines(b"outcome=")]
    assert outcomes == [b"client_gone", b"client_gone", b"completed", b"completed"]


@every_launch
async def test_what_cannot_end_is_told_so(launch: str, tiny: Path) -> None:
    async with launched(launch, model=tiny, drain_timeout_s=0.1) as server:
        endless, _ = await server.begin_stream(max_tokens=90_000, ignore_eos=True)
        server.process.send_signal(signal.SIGINT)
        assert "shutting down" in DIALECTS[0].last_error(await endless.rest())
        assert await server.process.wait() == 0
    assert b"Traceback" not in server.stderr
    assert b"outcome=shutdown phase=decode" in server.stderr


async def leave_and_be_followed(server: Launched) -> None:
    """Two that never end have both places; they leave, and the next one is answered at once."""
    first, _ = await server.begin_stream(max_tokens=90_000, ignore_eos=True)
    second, _ = await server.begin_stream(max_tokens=90_000, ignore_eos=True)
    await first.fin()
    await second.rst()
    behind, said = await server.begin_stream(max_tokens=5, ignore_eos=True)
    assert b"[DONE]" in said + await behind.rest()
    async with await Client.connect("127.0.0.1", server.port) as client:
        await client.request("GET", "/metrics")
        _, body = await client.response()
    figures = dict(line.rsplit(" ", 1) for line in body.decode().splitlines())
    assert float(figures["ds4trio_wasted_generated_tokens_total"]) <= 2
    assert figures['ds4trio_disconnects_total{phase="decode"}'] == "2.0"
    assert figures['ds4trio_sequences{state="running"}'] == "0.0"


async def test_the_second_signal_ends_it_at_once(tiny: Path) -> None:
    """The log is one JSON object a line, here."""
    settings = {"model": tiny, "drain_timeout_s": 1000, "log_format": "json"}
    async with launched("ds4trio", **settings) as server:
        await server.begin_stream(max_tokens=90_000, ignore_eos=True)
        server.process.send_signal(signal.SIGINT)
        await until(lambda: b"stopping" in server.stderr)
        server.process.send_signal(signal.SIGINT)
        assert await server.process.wait() == 128 + signal.SIGINT
    assert json.loads(server.lines(b"stopping")[0])["message"] == "SIGINT: stopping"


@pytest.mark.parametrize(
    ("launch", "code"),
    # Hypercorn's parent process ends when its worker has failed, but forgets the exit code.
    [("ds4trio", 1), ("hypercorn --workers 0", 1), ("hypercorn", 0)],
)
@pytest.mark.parametrize("wrong", ["setting", "model"])
def test_what_is_wrong_is_one_line(launch: str, code: int, wrong: str, tmp_path: Path) -> None:
    """All that can be wrong is in `test_cli`; here it is seen from outside."""
    settings: dict[str, object] = {"max_running": "none", "model": tmp_path}
    if wrong == "model":
        settings = {"model": write_tiny_llama(tmp_path)}
        weights = tmp_path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
    arguments, environ = command(launch, free_port(), settings)
    done = subprocess.run(arguments, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    (line,) = [line for line in lines if not line.startswith("[")]  # hypercorn's own
    assert ("'none' is not a whole number" if wrong == "setting" else str(tmp_path)) in line
