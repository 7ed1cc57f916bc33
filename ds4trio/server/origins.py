"""Whom a browser speaks for: which names the server answers to, and which pages may ask it.

A browser sends requests for any page it shows, also to servers that only its own machine can
reach. Two things keep strangers' pages out:

- *DNS rebinding*: a page's own name is made to point at this machine, so that to the browser the
  page and the server are one. But the ``Host`` still says the page's name.
- *Cross-site requests*: a page may send some requests without asking (and without reading the
  answer). ``Sec-Fetch-Site``, or the ``Origin``, tells.

Source: Fetch standard (CORS), W3C Fetch Metadata; the rules for requests that change something are
those of Go's ``http.CrossOriginProtection``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

from ds4trio.errors import ConfigError, ForbiddenError, MisdirectedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ds4trio.server.headers import Headers

#: An origin as browsers write it: no path, and no port where it is the scheme's own.
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(?::[0-9]*)?")
NAME = re.compile(r"[a-z0-9._-]+")
#: They change nothing, and without CORS no page can read what they answer.
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: Seconds for which a browser may remember what it was allowed; Chromium's own limit.
PREFLIGHT_AGE_S = 7200

PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    # The wildcard does not stand for authorization.
    (b"access-control-allow-headers", b"authorization, *"),
    (b"access-control-max-age", b"%d" % PREFLIGHT_AGE_S),
]


@dataclass(frozen=True, slots=True)
class Origins:
    """The rules of one server. Headers are given with names in lower case."""

    hosts: frozenset[str]
    pages: frozenset[bytes]

    @classmethod
    def from_settings(cls, allowed_hosts: Iterable[str], cors_origins: Iterable[str]) -> Origins:
        """Raises: ConfigError for what no browser would ever send."""
        hosts = frozenset(host.lower().removesuffix(".") for host in allowed_hosts)
        for host in hosts:
            if not NAME.fullmatch(host):
                raise ConfigError(f"allowed_hosts: {host!r} is not a host's name, without a port")
        pages = frozenset(page.lower() for page in cors_origins)
        for page in pages:
            if not ORIGIN.fullmatch(page):
                raise ConfigError(
                    f"cors_origins: {page!r} is not an origin, such as https://chat.example.org"
                )
        return cls(hosts, frozenset(page.encode() for page in pages))

    def check(self, method: str, headers: Mapping[bytes, bytes], local_address: str | None) -> None:
        """Refuse what a stranger's page made a browser send.

        ``local_address`` is the one at which the request arrived; None if it has none.
        Raises: MisdirectedError, ForbiddenError.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._answers_to(host, local_address):
            raise MisdirectedError(
                f"This server does not answer to the name {_without_port(host)!r}. "
                "If it is meant to, name it in allowed_hosts."
            )
        if method not in SAFE_METHODS and not self._may_change(headers):
            raise ForbiddenError(
                "A web page of another origin asks. If it is meant to, name it in cors_origins."
            )

    def is_preflight(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a browser asks in the name of one of our pages what it may send."""
        return (
            method == "OPTIONS"
            and b"access-control-request-method" in headers
            and headers.get(b"origin") in self.pages
        )

    def headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        """What an answer must say so that one of our pages may read it."""
        if not self.pages:
            return []
        origin = headers.get(b"origin")
        if origin is None or origin not in self.pages:
            return [(b"vary", b"origin")]
        return [
            (b"vary", b"origin"),
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"x-request-id, retry-after"),
        ]

    def _answers_to(self, host: str, local_address: str | None) -> bool:
        name = _without_port(host).lower().removesuffix(".")
        if not name or _is_address(name) or name == "localhost" or name.endswith(".localhost"):
            return True  # nobody can make these point elsewhere
        if self.hosts or (local_address is not None and is_loopback(local_address)):
            return name in self.hosts
        return True

    def _may_change(self, headers: Mapping[bytes, bytes]) -> bool:
        origin = headers.get(b"origin")
        if origin is None or origin in self.pages:
            return True
        if (site := headers.get(b"sec-fetch-site")) is not None:
            return site in (b"same-origin", b"none")
        return origin.partition(b"://")[2] == headers.get(b"host")


def _without_port(host: str) -> str:
    found = HOST.fullmatch(host)
    return found[1] if found else host


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it. A name is none, but for localhost."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address == "localhost"
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback
