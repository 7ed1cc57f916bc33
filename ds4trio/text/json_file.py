"""JSON files beside a model's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from pathlib import Path


def read_json_object(path: Path) -> dict[str, object]:
    """A file's JSON object; empty if there is no such file. Raises: LoadError naming the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from None
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: {error}") from None


def token_spelling(value: object) -> str | None:
    """A special token as ``tokenizer_config.json`` writes it: text, or an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
