"""A peer that vanishes (no FIN, no RST: its packets are simply lost) is noticed.

The client lives in a network namespace whose address is taken away. The patience of 25 s is
shortened for that; `test_connection_writes` asserts the options as they are by default.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import trio
import trio.testing
from dialects import DIALECTS, Dialect
from matrix import CHUNK, padded, request_lines
from serving import serving, until

from ds4trio.server import serve as serve_module
from ds4trio.server.limits import ConnectionLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ds4trio.config import Settings

VANISH_S = 2.0
#: Of the network kept for benchmarks (RFC 2544), so that nobody else's is met.
OURS, THEIRS = "198.18.77.1", "198.18.77.2"
ID = "the-one"

#: Sends what it is given, says so, and reads.
CLIENT = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
peer.sendall(bytes.fromhex(sys.argv[3]))
print("sent", flush=True)
while peer.recv(65536):
    pass
"""


@dataclass(frozen=True, slots=True)
class Network:
    """Two ends of a cable, one of them in a namespace."""

    namespace: str

    def run(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def lose_them(self) -> None:
        """From now on nobody has their address; our side still knows the way."""
        self.run("-n", self.namespace, "address", "flush", "dev", "theirs")


@contextmanager
def _network() -> Iterator[Network]:
    network = Network("ds4trio-vanish")
    network.run("netns", "add", network.namespace)
    try:
        network.run("-n", network.namespace, "link", "set", "lo", "up")
        network.run(
            *("link", "add", "ds4trio-ours", "type", "veth"),
            *("peer", "name", "theirs", "netns", network.namespace),
        )
        network.run("address", "add", f"{OURS}/30", "dev", "ds4trio-ours")
        network.run("link", "set", "ds4trio-ours", "up")
        inside = ("-n", network.namespace)
        network.run(*inside, "address", "add", f"{THEIRS}/30", "dev", "theirs")
        network.run(*inside, "link", "set", "theirs", "address", "02:00:00:00:00:02", "up")
        # So that the packets go out, into the void, and no error comes back from our own side.
        network.run(
            *("neighbour", "replace", THEIRS, "lladdr", "02:00:00:00:00:02"),
            *("nud", "permanent", "dev", "ds4trio-ours"),
        )
        yield network
    finally:
        subprocess.run(["ip", "link", "delete", "ds4trio-ours"], check=False, capture_output=True)
        network.run("netns", "delete", network.namespace)


@pytest.fixture
def network() -> Iterator[Network]:
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command")
    with ExitStack() as stack:
        try:
            made = stack.enter_context(_network())
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not to be had: {error.stderr.decode().strip()}")
        yield made


def impatient(settings: Settings) -> ConnectionLimits:
    return replace(
        ConnectionLimits(), vanish_s=VANISH_S, write_stall_s=settings.client_stall_timeout_s
    )


def wire(dialect: Dialect, *, stream: bool) -> str:
    body = json.dumps(dialect.fields(padded(""), stream=stream, max_tokens=4000)).encode()
    head = (
        f"POST {dialect.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"x-request-id: {ID}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return (head.encode() + body).hex()


#: The forward in which the worker is held when the peer vanishes.
PHASES = {"prefill, silent": 2, "decode, streaming": 8}


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
async def test_a_vanished_peer(network: Network, phase: str) -> None:
    """In silence the keepalive probes tell; while bytes are under way, the user timeout."""
    stream = "streaming" in phase
    dialect = DIALECTS[0]
    with request_lines() as lines, mock.patch.object(serve_module, "connection_limits", impatient):
        async with serving(
            gated=True, host=OURS, prefill_chunk_tokens=CHUNK, heartbeat_s=1000
        ) as server:
            command = ["ip", "netns", "exec", network.namespace, sys.executable, "-c", CLIENT]
            arguments = [OURS, str(server.port), wire(dialect, stream=stream)]
            async with trio.open_nursery() as nursery:
                process = await nursery.start(
                    partial(
                        trio.run_process,
                        [*command, *arguments],
                        stdout=subprocess.PIPE,
                        capture_stdout=False,
                        check=False,
                    )
                )
                assert await process.stdout.receive_some() == b"sent\n"
                held = PHASES[phase]
                server.gate.release(held - 1)
                await server.gate.reached(held)
                await until(lambda: ID in server.state.live)
                exchange = server.state.live[ID]
                began = trio.current_time()
                network.lose_them()
                if stream:  # something to write
                    server.gate.release()
                    held += 1
                    await server.gate.reached(held)
                await until(lambda: exchange.record.outcome is not None)
                noticed_s = trio.current_time() - began
                await trio.testing.wait_all_tasks_blocked()
                server.gate.open()
                await server.idle()
                process.kill()
            assert len(server.model.forwards) == held
            assert not server.model.live_states
    (line,) = lines.requests
    assert (line["outcome"], line["phase"]) == ("client_gone", phase.partition(",")[0])
    # Twice as long as asked for would be 50 s by default, which is more than the 30 s we promise.
    assert noticed_s < 2 * VANISH_S
