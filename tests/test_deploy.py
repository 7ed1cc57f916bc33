"""What can be told of the unit and the Dockerfile without running them."""

from __future__ import annotations

import configparser
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from ds4trio.cli import main
from ds4trio.config import Settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"


@pytest.fixture
def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names with capitals
    parser.read(DEPLOY / "ds4trio@.service")
    return parser["Service"]


@pytest.fixture
def dockerfile() -> list[tuple[str, str]]:
    """Instructions and what follows them."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def flags_are_known(command: list[str]) -> bool:
    with pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    return left.value.code == 0


def test_the_unit_starts_a_server(unit: configparser.SectionProxy) -> None:
    program, *arguments = shlex.split(unit["ExecStart"].replace("%i", "8001"))
    assert Path(program).name == "ds4trio"
    assert flags_are_known(arguments)


def test_the_unit_lets_requests_end(unit: configparser.SectionProxy) -> None:
    assert float(unit["TimeoutStopSec"]) > Settings().drain_timeout_s
    assert not {"KillMode", "KillSignal", "SendSIGKILL"} & unit.keys()


def test_the_dockerfile_finds_what_it_copies(dockerfile: list[tuple[str, str]]) -> None:
    copied = [source for word, rest in dockerfile if word == "COPY" for source in rest.split()[:-1]]
    assert {"pyproject.toml", "ds4trio"} <= set(copied)
    assert all((ROOT / source).exists() for source in copied)


def test_the_container_runs_the_server_itself(dockerfile: list[tuple[str, str]]) -> None:
    """Without a shell, which would keep SIGTERM to itself, and not as root."""
    said = dict(dockerfile)
    program, *arguments = json.loads(said["ENTRYPOINT"])
    assert program == "ds4trio"
    assert flags_are_known(arguments)
    assert said["USER"] not in ("root", "0")


def test_the_dockerfile_is_clean(dockerfile: list[tuple[str, str]]) -> None:
    (base,) = [rest for word, rest in dockerfile if word == "FROM"]
    assert base.partition(":")[2] not in ("", "latest")
    assert not [rest for word, rest in dockerfile if word == "ADD"]
    if shutil.which("hadolint"):
        subprocess.run(
            ["hadolint", "--ignore", "DL3008", "--ignore", "DL3013", DEPLOY / "Dockerfile"],
            check=True,
        )
