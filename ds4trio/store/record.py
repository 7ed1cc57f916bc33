"""``ds4trio.json``: what a prepared folder is, written last, read first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ds4trio.store.embedded import EmbeddedModel

RECORD = "ds4trio.json"
#: Raised whenever a prepared folder gets another form; older ones are then prepared anew.
FORMAT = 1


def write_record(folder: Path, model: EmbeddedModel) -> None:
    """Say what the folder holds now. Raises: OSError."""
    document = {
        "format": FORMAT,
        "source": model.source,
        "gguf_sha256": model.gguf_sha256,
        "file_bytes": _file_bytes(folder),
    }
    (folder / RECORD).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def has_record(folder: Path) -> bool:
    """Whether we prepared this folder; one without a record is the user's own."""
    return (folder / RECORD).is_file()


def is_current(folder: Path, model: EmbeddedModel) -> bool:
    """Whether a folder with a record is still this model, in today's form, no file cut short.

    Sizes are compared, not contents: it must cost nothing at each start. Raises: OSError.
    """
    try:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        found = _file_bytes(folder)
    except (ValueError, FileNotFoundError):  # cut short, or just being replaced
        return False
    if not isinstance(document, dict):
        return False
    sizes = document.get("file_bytes")
    return (
        document.get("format") == FORMAT
        and document.get("gguf_sha256") == model.gguf_sha256
        and isinstance(sizes, dict)
        and all(found.get(name) == size for name, size in sizes.items())
    )


def _file_bytes(folder: Path) -> dict[str, int]:
    return {
        file.name: file.stat().st_size
        for file in sorted(folder.iterdir())
        if file.name != RECORD and file.is_file()
    }
