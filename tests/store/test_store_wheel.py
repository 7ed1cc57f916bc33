from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tiny import (
    MEMBER,
    WHEEL_NAME,
    LinkWheel,
    RecordedProgress,
    make_tiny_model,
    tiny_store,
    write_wheel,
)

from ds4trio.errors import LoadError
from ds4trio.store.record import RECORD
from ds4trio.store.resolve import ModelStore
from ds4trio.store.wheel import pip_download

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ds4trio.store.embedded import EmbeddedModel


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[EmbeddedModel, Path]:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def pip_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which pip, set up as a user would by its variables, looks for wheels."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def ignore(downloaded_bytes: int) -> None:
    """Progress that nobody watches."""


def left_over(store: ModelStore) -> list[str]:
    """What lies in the cache beside models and locks."""
    return [path.name for path in (store.home / "models").iterdir() if path.suffix == ".tmp"]


# -- pip -----------------------------------------------------------------------------------------


def test_pull_through_pip(
    tiny: tuple[EmbeddedModel, Path], pip_finds: Path, tmp_path: Path
) -> None:
    model, wheel = tiny
    (pip_finds / WHEEL_NAME).write_bytes(wheel.read_bytes())
    progress = RecordedProgress()
    store = ModelStore(home=tmp_path / "home", progress=progress, embedded=(model,))
    resolved = store.resolve("Tiny")
    assert (resolved.path, resolved.name) == (store.home / "models" / "tiny-model", "tiny-model")
    assert {path.name for path in resolved.path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        RECORD,
    }
    assert left_over(store) == []
    titles = [title for title, _, _ in progress.stages]
    assert titles == ["downloading tiny-model==1.0", "verifying", "preparing"]
    assert progress.done[1:] == [model.gguf_bytes, progress.stages[2][1]]


def test_a_stray_pip_in_the_working_folder_is_not_run(
    tiny: tuple[EmbeddedModel, Path],
    pip_finds: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (pip_finds / WHEEL_NAME).write_bytes(tiny[1].read_bytes())
    (tmp_path / "pip.py").write_text("raise SystemExit('wrong pip')")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "download").mkdir()
    assert pip_download("tiny-model==1.0", tmp_path / "download", ignore).name == WHEEL_NAME


@pytest.mark.usefixtures("pip_finds")
def test_pip_does_not_find_the_wheel(tiny: tuple[EmbeddedModel, Path], tmp_path: Path) -> None:
    store = ModelStore(home=tmp_path / "h", progress=RecordedProgress(), embedded=(tiny[0],))
    with pytest.raises(LoadError) as caught:
        store.resolve("tiny")
    message = str(caught.value)
    assert message.startswith("cannot download tiny-model==1.0 with pip: No matching distribution")
    assert "\n" not in message
    assert left_over(store) == []


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A port on which nobody listens, and nobody can meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_no_network(
    tiny: tuple[EmbeddedModel, Path],
    refused_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{refused_port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    store = ModelStore(home=tmp_path / "h", progress=RecordedProgress(), embedded=(tiny[0],))
    with pytest.raises(LoadError, match=r"Connection refused.*check the network"):
        store.resolve("tiny")


def stand_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have a shell script run instead of ``python -m pip download ... --dest FOLDER NAME``."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("python: No module named pip", "python: No module named pip"),
        ("ERROR: first\nWARNING: noise\nERROR: last\n\nWARNING: more noise", "last"),
        (
            "ERROR: Exception:\nTraceback:\nOSError: [Errno 28] No space left on device",
            "OSError: [Errno 28] No space left on device",
        ),
        ("", "it said nothing"),
    ],
)
def test_what_pip_says_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    (tmp_path / "output").write_text(output)
    stand_in_python(tmp_path, monkeypatch, f"cat {tmp_path / 'output'} >&2; exit 1")
    with pytest.raises(LoadError) as caught:
        pip_download("tiny-model==1.0", tmp_path, ignore)
    assert f"with pip: {reason}; check the network" in str(caught.value)


def test_pips_progress_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    os.mkfifo(seen)
    script = f"""
        for word; do dest=$name; name=$word; done
        head -c 1000 /dev/zero > $TMPDIR/part
        cat {seen} > /dev/null
        mkdir $dest && mv $TMPDIR/part $dest/{WHEEL_NAME}
    """
    stand_in_python(tmp_path, monkeypatch, script)
    steps: list[int] = []

    def advance(step: int) -> None:
        steps.append(step)
        if sum(steps) == 1000 and step:
            seen.write_text("")  # opening it lets the script go on

    (tmp_path / "download").mkdir()
    wheel = pip_download("tiny-model==1.0", tmp_path / "download", advance)
    assert wheel.stat().st_size == sum(steps) == 1000


def test_pip_is_ended_with_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    stand_in_python(tmp_path, monkeypatch, f"exec cat > {alive} < {alive}")

    def interrupted(step: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # returns at all only if the script is killed
        pip_download("tiny-model==1.0", tmp_path, interrupted)


# -- what comes back -----------------------------------------------------------------------------


def test_wrong_contents(tiny: tuple[EmbeddedModel, Path], tmp_path: Path) -> None:
    model, wheel = tiny
    other = replace(model, gguf_sha256="0" * 64)
    store = tiny_store(tmp_path / "home", other, wheel)
    with pytest.raises(LoadError, match=f"sha256 {model.gguf_sha256}; expected .*{'0' * 64}"):
        store.resolve("tiny")
    assert not (store.home / "models" / "tiny-model").exists()
    assert left_over(store) == []


def test_wrong_size(tiny: tuple[EmbeddedModel, Path], tmp_path: Path) -> None:
    model, _ = tiny
    wheel = write_wheel(tmp_path / "short", b"GGUF")
    with pytest.raises(LoadError, match=r"tiny\.gguf: not the file that was expected \(4 bytes"):
        tiny_store(tmp_path / "home", model, wheel).resolve("tiny")


@pytest.mark.parametrize("kept", [0.5, 0.0])
def test_a_truncated_wheel(tiny: tuple[EmbeddedModel, Path], tmp_path: Path, kept: float) -> None:
    model, wheel = tiny
    content = wheel.read_bytes()
    cut = tmp_path / WHEEL_NAME
    cut.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(LoadError, match="the wheel is damaged"):
        tiny_store(tmp_path / "home", model, cut).resolve("tiny")


def test_flipped_bits_in_the_wheel(tiny: tuple[EmbeddedModel, Path], tmp_path: Path) -> None:
    model, wheel = tiny
    content = bytearray(wheel.read_bytes())
    middle = len(content) // 3
    content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
    damaged = tmp_path / WHEEL_NAME
    damaged.write_bytes(content)
    with pytest.raises(LoadError, match="the wheel is damaged"):
        tiny_store(tmp_path / "home", model, damaged).resolve("tiny")


def test_a_wheel_without_the_file(tiny: tuple[EmbeddedModel, Path], tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "other", b"", member="tiny_model/other.gguf")
    with pytest.raises(LoadError, match=f"{MEMBER}: the wheel holds no such file"):
        tiny_store(tmp_path / "home", tiny[0], wheel).resolve("tiny")


# -- when it is fetched again --------------------------------------------------------------------


def pull_twice(tiny: tuple[EmbeddedModel, Path], home: Path) -> tuple[ModelStore, LinkWheel]:
    store = tiny_store(home, *tiny)
    store.resolve("tiny")
    store.resolve("tiny")
    assert isinstance(store.download_wheel, LinkWheel)
    return store, store.download_wheel


def test_a_prepared_model_is_not_fetched_again(
    tiny: tuple[EmbeddedModel, Path], tmp_path: Path
) -> None:
    store, source = pull_twice(tiny, tmp_path / "home")
    assert len(source.downloads) == 1
    store.resolve("tiny", force=True)
    assert len(source.downloads) == 2


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", RECORD])
def test_a_file_that_was_cut_short_later_is_made_good(
    tiny: tuple[EmbeddedModel, Path], tmp_path: Path, name: str
) -> None:
    store, source = pull_twice(tiny, tmp_path / "home")
    file = store.resolve("tiny").path / name
    content = file.read_bytes()
    file.write_bytes(content[:-5])
    store.resolve("tiny")
    assert len(source.downloads) == 2
    assert file.read_bytes() == content


def test_another_form_or_another_model_is_made_anew(
    tiny: tuple[EmbeddedModel, Path], tmp_path: Path
) -> None:
    store, source = pull_twice(tiny, tmp_path / "home")
    record = store.resolve("tiny").path / RECORD
    for old in ('"format": 1', tiny[0].gguf_sha256):
        record.write_text(record.read_text().replace(old, '"format": 0'))
        before = len(source.downloads)
        store.resolve("tiny")
        assert len(source.downloads) == before + 1


def test_files_are_as_readable_as_the_user_wants(
    tiny: tuple[EmbeddedModel, Path], tmp_path: Path
) -> None:
    old = os.umask(0o027)
    try:
        folder = tiny_store(tmp_path / "home", *tiny).resolve("tiny").path
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}
    assert folder.stat().st_mode & 0o777 == 0o750
