"""What OpenAI's two generation endpoints answer in the same words: frame, usage, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ds4trio.errors import ContextOverflowError, Ds4TrioError, RequestError
from ds4trio.protocols.wire import WireEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.events import Usage

encode_json = msgspec.json.Encoder().encode

#: Says that a stream is complete. Never sent after an error.
DONE = WireEvent(b"[DONE]")


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    """What stands around the choices of an answer. ``created`` is in seconds since the epoch.

    With ``include_usage`` each chunk says ``"usage":null`` until the last says it all, as OpenAI's
    do; without it the word does not occur.
    """

    id: str
    created: int
    model: str
    include_usage: bool

    def head(self, kind: str) -> bytes:
        return b'{"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % (
            encode_json(self.id),
            encode_json(kind),
            self.created,
            encode_json(self.model),
        )

    def chunk_tail(self, so_far: Usage | None = None) -> bytes:
        """``so_far``: for those who want it in each chunk; when all is told, details are known."""
        if so_far is not None:
            return b'],"usage":%b}' % encode_json(_counts(so_far))
        return b'],"usage":null}' if self.include_usage else b"]}"

    def ending(self, kind: str, usage: Usage) -> list[WireEvent]:
        """What follows the chunk with the finish reason."""
        if not self.include_usage:
            return [DONE]
        return [WireEvent(self.body(kind, b"", usage)), DONE]

    def body(self, kind: str, choices: bytes, usage: Usage) -> bytes:
        return b'%b%b],"usage":%b}' % (self.head(kind), choices, _usage(usage))


def failure(error: Ds4TrioError, prompt_param: str) -> list[WireEvent]:
    """The last words of a broken stream, which has no ``[DONE]``.

    OpenAI's libraries raise on a chunk that has ``error``. A client that does not know it must not
    take what it has for the whole answer: it gets an end with neither finish reason nor [DONE].
    """
    return [WireEvent(error_body(error, prompt_param))]


def error_body(error: Ds4TrioError, prompt_param: str | None = None) -> bytes:
    """``prompt_param`` is the field that holds the prompt, to blame for its length."""
    kind, code = _KIND_AND_CODE.get(error.status, (_ASKER, None))
    param = None
    if isinstance(error, RequestError):
        param = error.param
        code = error.code or code
    if isinstance(error, ContextOverflowError):
        param = prompt_param
    body = {"message": error.message, "type": kind, "param": param, "code": code}
    return encode_json({"error": body})


# Some clients decide by the type's wording whether to try again, so only what may go better
# another time says server_error or rate_limit_error.
_ASKER = "invalid_request_error"
_KIND_AND_CODE: Mapping[int, tuple[str, str | None]] = {
    401: ("authentication_error", "invalid_api_key"),
    404: ("not_found_error", None),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", None),
    503: ("server_error", "unavailable"),
    504: ("server_error", "deadline_exceeded"),
}


def _usage(usage: Usage) -> bytes:
    details = {
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking_tokens},
    }
    return encode_json(_counts(usage) | details)


def _counts(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.generated_tokens,
        "total_tokens": usage.prompt_tokens + usage.generated_tokens,
    }
