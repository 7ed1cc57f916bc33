"""API keys: who may ask, and how much. Knows nothing of what is asked.

Only digests are kept, so that no key can turn up in a repr, an error or a traceback.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

BEARER = b"bearer"
NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
NUMBERS = ("max_running", "max_waiting", "tokens_per_minute")


@dataclass(frozen=True, slots=True)
class KeyRules:
    """What one key may do. None: as much as there is.

    ``max_running`` and ``max_waiting`` count its requests in places and in the queue;
    ``tokens_per_minute`` the tokens computed for prompts and answers. ``may_prioritise``: its
    requests may ask to go before others'.
    """

    name: str
    may_prioritise: bool = False
    max_running: int | None = None
    max_waiting: int | None = None
    tokens_per_minute: int | None = None


class ApiKeys:
    """The keys of one server, each with its rules."""

    def __init__(self, keys: Iterable[tuple[str, KeyRules]]) -> None:
        found = list(keys)
        self._digests = [_digest(key.encode()) for key, _ in found]
        self.rules = [rules for _, rules in found]

    @classmethod
    def load(cls, file: Path, setting: str = "api_keys_file") -> ApiKeys:
        """From a file with one key a line; empty lines and lines that begin with # don't count.

        A key's rules follow it: ``name=ann priority max_running=2 max_waiting=8
        tokens_per_minute=10000``, each as wanted. A key without a name is called ``key-1`` if it is
        the file's first. ``setting`` is what named it.

        Raises: ConfigError if it cannot be read, holds no key, or a line that is no key or no rule.
        """
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"{setting}: {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{setting}: {file}: not UTF-8 text") from None
        keys: list[tuple[str, KeyRules]] = []
        for number, line in enumerate(lines, start=1):
            key, *words = line.split() or [""]
            if not key or key.startswith("#"):
                continue
            where = f"{setting}: {file}, line {number}"
            if not (key.isascii() and key.isprintable()):  # it could not be sent in a header
                raise ConfigError(f"{where}: not a key")
            rules = _rules(words, f"key-{len(keys) + 1}", where)
            if rules.name in {other.name for _, other in keys}:
                raise ConfigError(f"{where}: there is a key named {rules.name} already")
            keys.append((key, rules))
        if not keys:
            raise ConfigError(f"{setting}: {file}: no key in it")
        return cls(keys)

    def find(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The name of the key that was sent as ``Authorization: Bearer`` or ``x-api-key``; None if
        neither holds one of ours. Header names are in lower case."""
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        for sent in (bearer if scheme.lower() == BEARER else b"", headers.get(b"x-api-key", b"")):
            if (found := self._index(sent.strip())) is not None:
                return self.rules[found].name
        return None

    def owner(self, name: str) -> str:
        """A key, given by its name, by something that stays when the file's lines change places:
        its SHA-256."""
        (digest,) = [
            d for d, rules in zip(self._digests, self.rules, strict=True) if rules.name == name
        ]
        return digest.hex()

    def _index(self, key: bytes) -> int | None:
        """Takes as long whichever key it is, or none."""
        digest = _digest(key)
        found = None
        for index, ours in enumerate(self._digests):
            if hmac.compare_digest(digest, ours):
                found = index
        return found


def _rules(words: Iterable[str], name: str, where: str) -> KeyRules:
    """Raises: ConfigError."""
    values: dict[str, int] = {}
    may_prioritise = False
    for word in words:
        option, _, value = word.partition("=")
        if option == "name" and NAME.fullmatch(value):
            name = value
        elif option in NUMBERS and value.isdecimal() and len(value) < 10:
            values[option] = int(value)
        elif word == "priority":
            may_prioritise = True
        else:
            # Not shown: it may be a secret that lost its way.
            raise ConfigError(f"{where}: what follows the key is no rule, or has a wrong value")
    return KeyRules(name, may_prioritise, **values)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
