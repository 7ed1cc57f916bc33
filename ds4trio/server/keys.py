"""API keys: who may ask. Knows nothing of what is asked.

Only digests are kept, so that no key can turn up in a repr, an error or a traceback.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

BEARER = b"bearer"


class ApiKeys:
    """The keys of one server."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @classmethod
    def load(cls, file: Path, setting: str = "api_keys_file") -> ApiKeys:
        """From a file with one key a line; empty lines and lines that begin with # don't count.

        ``setting`` is what named it. Raises: ConfigError if it cannot be read, holds no key, or a
        line that is no key.
        """
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"{setting}: {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{setting}: {file}: not UTF-8 text") from None
        keys = []
        for number, line in enumerate(lines, start=1):
            key = line.strip()
            if not key or key.startswith("#"):
                continue
            # Anything else could not be sent in a header.
            if not (key.isascii() and key.isprintable()) or " " in key:
                raise ConfigError(f"{setting}: {file}, line {number}: not one key")
            keys.append(key)
        if not keys:
            raise ConfigError(f"{setting}: {file}: no key in it")
        return cls(keys)

    def find(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Which key was sent (``key-1`` is the file's first), as ``Authorization: Bearer`` or
        ``x-api-key``; None if neither holds one of ours. Header names are in lower case."""
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        for sent in (bearer if scheme.lower() == BEARER else b"", headers.get(b"x-api-key", b"")):
            if (found := self._index(sent.strip())) is not None:
                return f"key-{found + 1}"
        return None

    def owner(self, name: str) -> str:
        """A key (``key-1``) by something that stays when the file's lines change places: its
        SHA-256."""
        return self._digests[int(name.removeprefix("key-")) - 1].hex()

    def _index(self, key: bytes) -> int | None:
        """Takes as long whichever key it is, or none."""
        digest = _digest(key)
        found = None
        for index, ours in enumerate(self._digests):
            if hmac.compare_digest(digest, ours):
                found = index
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
