"""Errors as Anthropic says them.

Source: Anthropic's API reference, "Errors".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ds4trio.errors import ContextOverflowError, OverloadedError, RequestError
from ds4trio.protocols.fields import UNSUPPORTED
from ds4trio.protocols.wire import WireEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.errors import Ds4TrioError

OVERLOADED = 529

#: Codes that the official clients know, by the field that is not supported. Without threads, they
#: ask again with all messages, and go on like that.
_CODES: Mapping[str, str] = {"thread": "thread_unsupported_request"}

# What is not here is the asker's fault, if it is a 4xx, and ours otherwise.
_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def status(error: Ds4TrioError) -> int:
    """Anthropic's 429 says that the asker has used up what it may have, and some clients tell
    people so; a full queue is nobody's account, and has a status of its own. Every client that
    tries again after 429 does so after 529."""
    return OVERLOADED if isinstance(error, OverloadedError) else error.status


def error_body(error: Ds4TrioError) -> bytes:
    code = status(error)
    kind = _KINDS.get(code, "invalid_request_error" if code < 500 else "api_error")
    message = error.message
    if isinstance(error, ContextOverflowError):
        # The sentence from which Claude Code learns both numbers, and that it should compact.
        # The maximum is a prompt's: one token is the answer's.
        most = error.context_tokens - 1
        message = f"prompt is too long: {error.prompt_tokens} tokens > {most} maximum"
        if error.at_least:
            message += " (at least so many: they were not counted to the end)"
    elif isinstance(error, RequestError) and error.param and error.param not in message:
        message = f"{error.param}: {message}"  # there is no other place for it
    told: dict[str, object] = {"type": kind, "message": message}
    if known := _known_code(error):
        told["details"] = {"error_code": known}
    return msgspec.json.encode({"type": "error", "error": told})


def _known_code(error: Ds4TrioError) -> str | None:
    if isinstance(error, RequestError) and error.code == UNSUPPORTED:
        return _CODES.get(error.param or "")
    return None


def failure(error: Ds4TrioError) -> list[WireEvent]:
    """The last words of a broken stream."""
    return [WireEvent(error_body(error), "error")]
