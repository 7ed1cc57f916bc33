"""What `ds4trio config` prints."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from ds4trio.cli import main
from ds4trio.config import Settings, load_settings

if TYPE_CHECKING:
    from pathlib import Path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["config", *arguments])
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets what the environment and flags set, too."""
    file = tmp_path / "settings.toml"
    file.write_text('port = 1\nmax_running = 1\nthreads = 1\nresponses_dir = "a \\"b\\" é"\n')
    monkeypatch.setenv("DS4TRIO_PORT", "2")
    monkeypatch.setenv("DS4TRIO_THREADS", "")
    monkeypatch.setenv("DS4TRIO_ALLOWED_HOSTS", "a,b")
    return file


def test_where_each_setting_comes_from(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    lines = printed(capsys, f"--config={file}", "--port=3", "--no-page").splitlines()
    assert {
        "port = 3  # --port",
        "page = false  # --page",
        'allowed_hosts = ["a", "b"]  # DS4TRIO_ALLOWED_HOSTS',
        "# threads is not set: DS4TRIO_THREADS",
        f"max_running = 1  # {file}",
        'host = "127.0.0.1"  # default',
        "# request_timeout_s is not set: default",
    } <= set(lines)
    assert len(lines) == len(Settings.__dataclass_fields__)


def test_it_is_a_file_of_the_same_settings(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    said = printed(capsys, f"--config={file}", "--port=3")
    tomllib.loads(said)
    again = tmp_path / "again.toml"
    again.write_text(said)
    assert load_settings(environ={}, file=again) == load_settings({"port": 3}, file=file)
