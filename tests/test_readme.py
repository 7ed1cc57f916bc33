"""README.md is true: its tables match the code, its programs run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ds4trio.config import DEFAULT_MODEL, describe
from ds4trio.server.metrics import Metrics
from ds4trio.server.record import Outcome, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parents[1] / "README.md"


def settings_table() -> str:
    lines = ["| setting | default | |", "|---|---|---|"]
    for name, _, default, help_ in describe():
        shown = "" if default in (None, ()) else f"`{default}`"
        lines.append(f"| `{name}` | {shown} | {help_} |")
    return "\n".join(lines)


def program(containing: str) -> str:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if containing in block]
    return found


def run(source: str, home: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={"DS4TRIO_HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_settings_table() -> None:
    """To renew it: ``python -c 'from tests.test_readme import *; print(settings_table())'``."""
    assert f"<!-- settings -->\n{settings_table()}\n<!-- /settings -->" in README.read_text()


def test_metrics_table() -> None:
    text = README.read_text()
    exposed = Metrics().render()[0].decode()
    families = set(re.findall(r"^# TYPE (\S+)", exposed, re.MULTILINE))
    named = set(re.findall(r"`(ds4trio_\w+)(?:{[\w,]*})?`", text))
    # Those of the process are the library's own, named as in every exporter.
    assert {family for family in families if family.startswith("ds4trio_")} <= named
    for word in [*Outcome, *Phase]:
        assert word in text


@pytest.fixture
def home(default_model: Path) -> Path:
    return default_model.parents[1]


@pytest.mark.model
def test_embedding_program(home: Path) -> None:
    assert run(program("open_engine"), home)


@pytest.fixture
def url(home: Path) -> Iterator[str]:
    """``ds4trio serve`` on a free port, with the default model."""
    with subprocess.Popen(
        [sys.executable, "-m", "ds4trio", "serve", DEFAULT_MODEL, "--port", "0"],
        env={"DS4TRIO_HOME": str(home), "PATH": "/usr/bin:/bin"},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        try:
            said = ""
            while " is ready" not in said:
                line = server.stderr.readline()
                assert line, said
                said += line
            (found,) = re.findall(r"http://[\d.]+:\d+", said)
            yield found
        finally:
            server.terminate()
            server.communicate()
    assert server.returncode == 0


@pytest.mark.model
def test_sdk_program(url: str, home: Path) -> None:
    source = program("OpenAI(").replace("http://127.0.0.1:8000", url)
    # A whole story takes minutes on a small machine; its beginning shows as much.
    assert run(source.replace("stream=True", "stream=True, max_tokens=24"), home)
