"""The C++ of this folder as a library, built for this processor the first time and then kept.

Runs on: worker, after torch is imported, so that its OpenMP is the one that the library finds.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock

from ds4trio.config import HOME_VARIABLE

logger = logging.getLogger("ds4trio.models")

_FOLDER = Path(__file__).parent
_SOURCE = "decoder.cpp"
#: With ``-march=native``, what is built runs only on processors with the same features.
_FLAGS = ("-std=c++17", "-O2", "-funroll-loops", "-march=native", "-fopenmp", "-fPIC", "-shared")
_COMPILERS = ("c++", "g++", "clang++")


class CannotBuild(Exception):
    """There is no library, and why, in one line."""


def library() -> ctypes.CDLL:
    """Raises: CannotBuild."""
    compiler = _compiler()
    try:
        path = _cache_folder() / f"decoder-{_identity(compiler)}.so"
        if not path.exists():  # else nothing is written: the folder may be read-only by now
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                if not path.exists():
                    _build(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        raise CannotBuild(str(error)) from None


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        if path := shutil.which(name):
            return path
    raise CannotBuild(f"no C++ compiler ({named or ', '.join(_COMPILERS)})")


def _cache_folder() -> Path:
    """Beside the models, or in the user's cache."""
    if home := os.environ.get(HOME_VARIABLE):
        return Path(home) / "native"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "ds4trio" / "native"


def _identity(compiler: str) -> str:
    """Of all that the result depends on, and of the C library that it needs. Raises: OSError."""
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    words = (compiler, said.stdout, *_FLAGS, *platform.libc_ver(), _processor())
    digest = hashlib.sha256(" ".join(words).encode())
    for file in sorted([*_FOLDER.glob("*.h"), _FOLDER / _SOURCE]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """Its features, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith("flags")), platform.machine())


def _build(compiler: str, path: Path) -> None:
    """Raises: CannotBuild, OSError."""
    logger.info("building kernels for this processor, once: %s", path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *_FLAGS, "-o", str(built), str(_FOLDER / _SOURCE)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = [line for line in result.stderr.splitlines() if "error" in line]
            reason = (lines or result.stderr.splitlines() or ["it said nothing"])[0]
            raise CannotBuild(f"{compiler}: {reason}")
        built.replace(path)
