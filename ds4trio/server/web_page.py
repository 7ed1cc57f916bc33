"""The built-in web page: static files of this package, and what browsers are told about them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}

#: Whatever a model says, the page can load and run only its own files, ask only its own server,
#: make no markup of text, and be framed by nobody.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)

PAGE_HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    # After an upgrade of the server, no file of the page before it.
    (b"cache-control", b"no-cache"),
]


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file and its content type."""

    body: bytes
    kind: bytes


def page_files() -> Mapping[str, PageFile]:
    """The page's files by the paths at which they are served; the page itself is at ``/``."""
    found: dict[str, PageFile] = {}
    for file in resources.files("ds4trio.server").joinpath("page").iterdir():
        for suffix, kind in KINDS.items():
            if file.name.endswith(suffix):
                path = "/" if file.name == "index.html" else f"/page/{file.name}"
                found[path] = PageFile(file.read_bytes(), kind)
    return found
