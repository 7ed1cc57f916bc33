"""The layout holds: imports run downward, and each danger lives in one file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ds4trio

HOUSE = Path(ds4trio.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))

#: Which rooms a room may import, beside itself.
LEAVES = {"errors", "config"}
VOCABULARY = LEAVES | {"request", "events"}
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "request": set(),
    "events": set(),
    "logs": {"server"},  # for the record it prints
    "threads": {"errors"},
    "models": LEAVES,
    "cache": LEAVES | {"models", "threads"},
    "text": LEAVES | {"models"},
    "store": LEAVES | {"models", "text"},
    "chat": VOCABULARY | {"text"},
    "constraint": LEAVES | {"request", "text"},
    "engine": LEAVES | {"request", "cache", "models", "threads"},
    "protocols": VOCABULARY,
    "reply": VOCABULARY | {"engine", "chat", "text"},
    "service": VOCABULARY
    | {"reply", "engine", "constraint", "chat", "text", "models", "threads", "cache"},
    "opening": LEAVES
    | {"service", "engine", "constraint", "chat", "text", "models", "store", "threads", "cache"},
    "inspect_model": LEAVES | {"chat", "text", "models", "store"},
    "quality": LEAVES | {"text", "models", "store"},
    "server": VOCABULARY | {"service", "reply", "protocols", "threads", "logs", "engine", "cache"},
    "testing": VOCABULARY
    | {"service", "engine", "constraint", "chat", "text", "models", "threads"},
    "asgi": VOCABULARY | {"opening", "server", "logs"},
    "bench": LEAVES | {"opening", "service", "server"},
    "cli": VOCABULARY | {"opening", "server", "store", "logs", "bench", "inspect_model", "cache"},
    "__main__": {"cli"},
}

#: Which files may import a library that is dangerous elsewhere.
LIBRARY_HOMES: dict[str, set[str]] = {
    "trio": {
        "engine/engine",
        "engine/stream",
        "reply",
        "threads",
        "server",
        "bench",
        "cli",
        "testing",
    },
    "torch": {
        "models",
        "cache",
        "engine/worker",
        "engine/sequence",
        "engine/sampler",
        "engine/penalties",
        "engine/guide",
        "engine/logprobs",
        "quality",
        "testing",
    },
    "llguidance": {"constraint"},
    "hypercorn": {"server"},
    "h11": {"server", "bench"},
}


def place(file: Path) -> str:
    return file.relative_to(HOUSE).with_suffix("").as_posix()


def room(file: Path) -> str:
    return place(file).split("/")[0]


def imported(file: Path) -> list[tuple[str, bool]]:
    """Each module imported anywhere in a file, and whether it is only for type checking."""
    tree = ast.parse(file.read_text())
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", node in typing_only) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, node in typing_only) for alias in node.names]
    return found


@pytest.mark.parametrize("file", FILES, ids=place)
def test_imports_run_downward(file: Path) -> None:
    if place(file) == "__init__":
        return
    for module, _ in imported(file):
        parts = module.split(".")
        if parts[0] == "ds4trio" and len(parts) > 1:
            assert parts[1] in BELOW[room(file)] | {room(file)}, module


@pytest.mark.parametrize("file", FILES, ids=place)
def test_libraries_stay_in_their_rooms(file: Path) -> None:
    for module, typing_only in imported(file):
        homes = LIBRARY_HOMES.get(module.split(".")[0])
        if homes is not None and not typing_only:
            assert homes & {place(file), room(file)}, module


def calls(name: str) -> set[str]:
    """Files that call something's attribute, or a function, of this name."""
    return {
        place(file)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] == name
    }  # fmt: skip


def test_one_file_crosses_threads() -> None:
    crossing = {
        place(file)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("to_thread", "from_thread", "run_sync_soon", "TrioToken")
    }
    assert crossing == {"threads"}


def test_one_file_sends() -> None:
    """ASGI's ``send`` is called only where a failed write becomes the end of the request."""
    senders = {
        place(file)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("send", "self._send")
        and room(file) == "server"
    }
    assert senders == {"server/exchange"}


def test_no_work_at_import() -> None:
    """Modules define; they do not do. (The ASGI application object is the one exception.)"""
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
                assert place(file) == "__main__", (place(file), ast.unparse(node))
