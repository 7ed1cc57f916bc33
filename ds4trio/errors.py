"""Everything that can go wrong, by whose fault it is.

::

    Ds4TrioError
    ├── RequestError                the asker's fault: 4xx
    │   ├── ContextOverflowError    the prompt does not fit the context
    │   ├── AuthenticationError     no key, or not one of ours
    │   ├── ForbiddenError          a web page asks that may not
    │   ├── MisdirectedError        asked by a name that is not ours
    │   ├── NotFoundError           no such route, model or request
    │   ├── MethodNotAllowedError
    │   ├── ConflictError           a request with that id is already running
    │   ├── BodyTooLargeError
    │   ├── UnsupportedMediaTypeError
    │   ├── BodyTimeoutError        the body came too slowly
    │   └── RequestCancelledError   ended on demand, by its id
    ├── OverloadedError             the queue is full: try again later
    ├── RateLimitError              the key has taken what it may: try again later
    ├── UnavailableError            the model is loading, or the server shutting down
    ├── DeadlineExceededError       the request's own time ran out
    ├── EngineFailed                the worker thread died; nothing will be computed any more
    ├── LoadError                   a model is wrong, truncated or unsupported
    └── ConfigError                 a setting is wrong

A bare ``ValueError`` that reaches the server is a bug of ours and becomes a 500.
"""

from __future__ import annotations


class Ds4TrioError(Exception):
    """Base of all errors that this package raises on purpose."""

    #: HTTP status with which the server answers.
    status = 500
    #: Whole seconds after which trying again makes sense; None: it does not.
    retry_after_s: int | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(Ds4TrioError):
    """The request cannot be served as asked.

    ``param`` is the path of the offending field (``messages[2].content``), ``code`` a stable
    machine-readable word where the protocols have one.
    """

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextOverflowError(RequestError):
    """The prompt leaves no room for even one token. ``at_least``: it was not counted to its end."""

    def __init__(self, prompt_tokens: int, context_tokens: int, *, at_least: bool = False) -> None:
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens, but the prompt has "
            f"{'at least ' if at_least else ''}{prompt_tokens} tokens, and must leave room for an "
            "answer.",
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        self.at_least = at_least


class AuthenticationError(RequestError):
    """No API key, or an unknown one."""

    status = 401


class ForbiddenError(RequestError):
    """A browser asks in the name of a web page that may not."""

    status = 403


class MisdirectedError(RequestError):
    """The ``Host`` is no name of this server."""

    status = 421


class NotFoundError(RequestError):
    """No such route, model or request."""

    status = 404


class MethodNotAllowedError(RequestError):
    """The route exists, the method does not. ``allowed`` are those that do."""

    status = 405

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class ConflictError(RequestError):
    """A request with the same id is already running."""

    status = 409


class BodyTimeoutError(RequestError):
    """The request body did not arrive in time."""

    status = 408


class BodyTooLargeError(RequestError):
    """The request body exceeds ``max_body_bytes``."""

    status = 413


class UnsupportedMediaTypeError(RequestError):
    """The request body is not JSON, or is compressed."""

    status = 415


class RequestCancelledError(RequestError):
    """The request was ended on demand. The status is nginx's for a request that was given up."""

    status = 499


class OverloadedError(Ds4TrioError):
    """The queue is full. ``retry_after_s`` is an estimate."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimitError(Ds4TrioError):
    """The API key has all that it may have for now. Nobody else is meant."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(Ds4TrioError):
    """The model is still loading, or the server is shutting down: elsewhere or later, perhaps."""

    status = 503
    retry_after_s = 5


class DeadlineExceededError(Ds4TrioError):
    """The request's deadline passed before it was finished."""

    status = 504


class EngineFailed(Ds4TrioError):
    """The engine's worker thread has died. Final: the process should be restarted."""

    status = 500


class LoadError(Ds4TrioError):
    """A model cannot be loaded. The message is one line that names the file, tensor or setting."""


class ConfigError(Ds4TrioError):
    """A setting is wrong. The message is one line that names it."""
