"""Typed reading of a model's ``config.json``, with errors that name the file and the setting.

Knows nothing of any model family.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_T = TypeVar("_T")


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in a file. Raises: LoadError."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{path}: not a JSON object")
    return value


class ConfigFields:
    """A configuration's settings by name; ``null`` counts as absent.

    A method without ``default`` insists that the setting is there.
    Raises: LoadError, from every method.
    """

    def __init__(self, path: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    def error(self, name: str, what: str) -> LoadError:
        """An error that names the file and this setting, for the caller to raise."""
        return LoadError(f"{self.path}: {self._prefix}{name}: {what}")

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    @property
    def names(self) -> frozenset[str]:
        """Settings that are there, ``null`` or not."""
        return frozenset(self._values)

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least ``least``."""
        value = self._required(name, default)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or value < least:
            raise self.error(name, f"{value!r} is not a whole number above {least - 1}")
        return value

    def integers(self, name: str, *, least: int = 1) -> tuple[int, ...]:
        """A list of whole numbers of at least ``least``."""
        items = self._items(name)
        return tuple(items.integer(str(index), least=least) for index in range(len(items.names)))

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._required(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.error(name, f"{value!r} is not a number above 0")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        items = self._items(name)
        return tuple(items.number(str(index)) for index in range(len(items.names)))

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"{value!r} is neither true nor false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._required(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"{value!r} is not text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if absent."""
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"{value!r} is not a list of texts")
        return tuple(value)

    def section(self, name: str) -> ConfigFields:
        """An object within; empty if absent."""
        value = self._values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(name, f"{value!r} is not an object")
        return ConfigFields(self.path, value, f"{self._prefix}{name}.")

    def _items(self, name: str) -> ConfigFields:
        """A list's items by their place."""
        value = self._required(name, None)
        if not isinstance(value, list):
            raise self.error(name, f"{value!r} is not a list of numbers")
        places = {str(index): item for index, item in enumerate(value)}
        return ConfigFields(self.path, places, f"{self._prefix}{name}.")

    def _required(self, name: str, default: _T | None) -> object:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.error(name, "missing")
        return value
