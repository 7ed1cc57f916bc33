"""HTTP/1.1 words: from h11's events to the ASGI scope, and answers that no application gives.

Pure: no I/O, no Trio.
"""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import h11

if TYPE_CHECKING:
    from collections.abc import Mapping

ABSOLUTE_FORM = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*(.*)")

Address = tuple[str, int]


def http_scope(
    request: h11.Request,
    *,
    scheme: str,
    client: Address | None,
    server: Address | None,
    state: Mapping[str, Any],
) -> dict[str, Any]:
    """The ASGI scope of a request. ``state`` is copied, as ASGI asks."""
    target, _, query = _origin_form(request.target).partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": request.http_version.decode("ascii"),
        "method": request.method.decode("ascii").upper(),
        "scheme": scheme,
        "path": unquote_to_bytes(target).decode("utf-8", errors="replace"),
        "raw_path": target,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers),
        "client": client,
        "server": server,
        "state": dict(state),
        "extensions": {},
    }


def _origin_form(target: bytes) -> bytes:
    """``http://host/path`` (RFC 9112, 3.2.2) as ``/path``."""
    absolute = ABSOLUTE_FORM.match(target)
    if absolute is None:
        return target
    rest = absolute.group(1)
    return rest if rest.startswith(b"/") else b"/" + rest


def date() -> bytes:
    """Now, as a ``date`` header has it."""
    return formatdate(usegmt=True).encode("ascii")


def unserved(request: h11.Request) -> HTTPStatus | None:
    """The status of a request that this connection cannot carry, or None."""
    if request.http_version not in (b"1.0", b"1.1"):
        return HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
    if request.method == b"CONNECT":
        return HTTPStatus.NOT_IMPLEMENTED
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        # A proxy in front may have read another end of the body (RFC 9112, 6.1 and 11.2).
        return HTTPStatus.BAD_REQUEST
    return None


def plain_answer(status: HTTPStatus, *, with_body: bool = True) -> bytes:
    """A whole response that ends the connection."""
    body = f"{status.value} {status.phrase}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"date", date()),
    ]
    http = h11.Connection(h11.SERVER)
    head = http.send(
        h11.Response(status_code=status.value, headers=headers, reason=status.phrase.encode())
    )
    assert head is not None
    return head + body if with_body else head


def status_of(error: h11.RemoteProtocolError) -> HTTPStatus:
    """What h11 suggests for bytes that are not HTTP."""
    return HTTPStatus(error.error_status_hint)
