"""JSON bodies to typed structs, and errors that name the field as its sender would.

Knows no protocol. A field that is ``null`` counts as absent (declare it ``T | None = None``);
fields that the struct does not declare are ignored.
"""

from __future__ import annotations

import json
import re
from typing import TypeVar

import msgspec

from ds4trio.errors import RequestError

T = TypeVar("T")

UNSUPPORTED = "unsupported_parameter"

# msgspec ends a message with " - at `$.messages[0].content`".
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
# Any member of an object that is a plain mapping: the mapping itself is what can be named.
_ANY_MEMBER = "[...]"
_JSON_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def read(body: bytes, type_: type[T]) -> T:
    """The body as a struct.

    Raises: RequestError, whose ``param`` is the field's path (``messages[0].content``), or None if
    the body as a whole is no UTF-8, no JSON, no object, or nested too deeply.
    """
    try:
        # msgspec does not look into the fields it skips, and JSON is UTF-8 throughout (RFC 8259).
        body.decode("utf-8")
        return msgspec.json.decode(body, type=type_)
    except UnicodeDecodeError as error:
        message = f"The body is not valid UTF-8 (byte {error.start})."
    except RecursionError:
        message = "The body is nested too deeply."
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except msgspec.DecodeError as error:
        message = f"The body is not valid JSON: {error}."
    raise RequestError(message)


def convert(value: object, type_: type[T], at: str) -> T:
    """What JSON was read into before, as a struct. ``at`` is its own path in the body.

    Raises: RequestError, as `read`.
    """
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise _named(str(error), at) from None


def invalid(param: str, what: str) -> RequestError:
    """A field that cannot be what it is."""
    return RequestError(f"{param}: {what}", param=param)


def unsupported(param: str, what: str = "not supported by this server") -> RequestError:
    """A field that asks for something this server cannot honour."""
    return RequestError(f"{param}: {what}", param=param, code=UNSUPPORTED)


def required(value: T | None, param: str) -> T:
    """The value, if there is one. Raises: RequestError."""
    if value is None:
        raise invalid(param, "required, but missing or null")
    return value


def to_text(value: object, param: str) -> str:
    """A value that was read, as JSON text: what msgspec's own encoder refuses (integers of more
    than 64 bits) included. Raises: RequestError."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise invalid(param, "nested too deeply") from None


def _named(message: str, at: str = "") -> RequestError:
    place = _PLACE.match(message)
    assert place is not None
    what = re.sub("`([^`]*)`", _in_json_words, place["what"])
    path = (place["path"] or "").partition(_ANY_MEMBER)[0]
    param = f"{at}.{path}" if at and path and not path.startswith("[") else at + path
    if not param:
        return RequestError(f"The body is not a JSON object: {what}.")
    return invalid(param, what[0].lower() + what[1:])


def _in_json_words(quoted: re.Match[str]) -> str:
    words = [word for word in quoted[1].split(" | ") if word != "null"] or ["null"]
    return " or ".join(_JSON_WORDS.get(word, word) for word in words)
