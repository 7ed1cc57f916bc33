"""The official clients for Node, from the lock file beside the scripts that use them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    #: Runs a script with the address of a server and a key; what it reports.
    Run = Callable[..., Awaitable[Any]]

FOLDER = Path(__file__).parent / "node"
UNREACHABLE = re.compile(r"npm error (?:network|code E(?:NOTFOUND|AI_AGAIN|CONN|TIMEDOUT|NETUN))")


@pytest.fixture(scope="session")
def run_node() -> Run:
    """Skips if there is no Node, or no way to the package registry."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    _install(npm)

    async def run(script: str, url: str, key: str = "none") -> Any:  # noqa: ANN401 - JSON
        done = await trio.run_process(
            [node, str(FOLDER / script), url, key],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return run


def _install(npm: str) -> None:
    """Once for each version of the lock file: npm notes beside the packages what it installed."""
    noted = FOLDER / "node_modules" / ".package-lock.json"
    if noted.exists() and noted.stat().st_mtime >= (FOLDER / "package-lock.json").stat().st_mtime:
        return
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    if UNREACHABLE.search(done.stderr):
        pytest.skip("the npm registry cannot be reached")
    assert done.returncode == 0, done.stderr
