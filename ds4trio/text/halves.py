"""Half a surrogate pair: Python's texts may hold it, and nobody else's."""

from __future__ import annotations

from ds4trio.errors import RequestError


def check_text(text: str, param: str) -> None:
    """No JSON can bring it, but a program can, and no tokenizer takes it. Raises: RequestError."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{param}: half a surrogate pair is no text", param=param) from None
