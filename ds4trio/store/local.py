"""Models named by where they lie."""

from __future__ import annotations

import os
from pathlib import Path

from ds4trio.errors import LoadError
from ds4trio.store.folder import check_model_folder


def find_local(name: str) -> Path | None:
    """The folder or .gguf file that ``name`` is the path of, absolute.

    Raises: LoadError if it is there but no model, or is spelled as a path and is not there.
    """
    path = Path(os.path.abspath(os.path.expanduser(name)))
    # os.path and not Path: it says no, instead of raising, to what can never be a path.
    if os.path.isdir(path):
        check_model_folder(path)
        return path
    if os.path.isfile(path):
        if path.suffix.lower() != ".gguf":
            raise LoadError(f"{name}: a file, but neither a model folder nor a .gguf file")
        return path
    if _is_spelled_as_path(name):
        raise LoadError(f"{name}: no such file or folder")
    return None


def _is_spelled_as_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~"))
        or name.endswith(("/", ".gguf"))
        or name.count("/") > 1
        or "\\" in name
    )
