"""A tool call's arguments: DSML's parameters to JSON text, as they come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn, Protocol

from ds4trio.chat.call_reader import INPUT_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.request import ToolSpec

#: What is before and after a JSON string.
_QUOTE = '"'


class Arguments(Protocol):
    """Parameters come one after another: each begins, has a value, and ends. Every method returns
    what more there is of the arguments' text."""

    @property
    def in_payload(self) -> bool:
        """Whether the value goes on with what the model has to say, not with JSON's own signs."""
        ...

    def begin(self, name: str, *, is_string: bool | None) -> str:
        """``is_string``: whether the value is plain text or JSON; None if it was not said."""
        ...

    def value(self, text: str) -> str:
        """More of the value."""
        ...

    def end(self) -> str:
        """The value is whole."""
        ...

    def finish(self) -> str:
        """There are no more parameters."""
        ...


class JsonArguments:
    """A JSON object, valid once it is finished, whatever the model wrote.

    Text is told as it comes. JSON is told once it is whole, and as text if it is not valid: who
    runs the tool can then say what is wrong. Of parameters with one name the first counts.
    """

    def __init__(self, tool: ToolSpec | None) -> None:
        """``tool`` tells what a parameter is of which that was not said; otherwise it is text."""
        self._properties = _properties(tool)
        self._names: set[str] = set()
        self._is_string = True
        self._skips = False
        self._json: list[str] = []
        self._scan = _StringScan()

    @property
    def in_payload(self) -> bool:
        return self._is_string or self._scan.in_string

    def begin(self, name: str, *, is_string: bool | None) -> str:
        self._skips = name in self._names
        if self._skips:
            return ""
        self._is_string = self._may_be_text(name) if is_string is None else is_string
        opening = ", " if self._names else "{"
        self._names.add(name)
        return f"{opening}{_quoted(name)}: {_QUOTE if self._is_string else ''}"

    def value(self, text: str) -> str:
        if self._skips:
            return ""
        if self._is_string:
            return _quoted(text)[1:-1]
        self._json.append(text)
        self._scan.feed(text)
        return ""

    def end(self) -> str:
        if self._skips:
            return ""
        if self._is_string:
            return _QUOTE
        self._scan = _StringScan()
        text = "".join(self._json)
        self._json.clear()
        return text.strip() if _is_json(text) else _quoted(text)

    def finish(self) -> str:
        return "}" if self._names else "{}"

    def _may_be_text(self, name: str) -> bool:
        match self._properties.get(name):
            case {"type": str(kind)}:
                return kind == "string"
            case {"type": list(kinds)}:
                return "string" in kinds
        return True


class PlainInput:
    """A custom tool's input: the text of its one parameter."""

    #: It is the model's own, all of it.
    in_payload = True

    def __init__(self) -> None:
        self._has_begun = self._skips = False
        self._json: list[str] | None = None

    def begin(self, name: str, *, is_string: bool | None) -> str:
        self._skips = self._has_begun or name != INPUT_KEY
        self._has_begun = self._has_begun or not self._skips
        self._json = [] if is_string is False else None
        return ""

    def value(self, text: str) -> str:
        if self._skips:
            return ""
        if self._json is None:
            return text
        self._json.append(text)
        return ""

    def end(self) -> str:
        if self._skips or self._json is None:
            return ""
        text = "".join(self._json)
        value = json.loads(text) if _is_json(text) else None
        return value if isinstance(value, str) else text

    def finish(self) -> str:
        return ""


class _StringScan:
    """Whether JSON, as far as it has come, ends within a string."""

    def __init__(self) -> None:
        self.in_string = self._escaped = False

    def feed(self, text: str) -> None:
        for char in text:
            if self._escaped:
                self._escaped = False
            elif char == _QUOTE:
                self.in_string = not self.in_string
            else:
                self._escaped = char == "\\" and self.in_string


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _properties(tool: ToolSpec | None) -> Mapping[str, object]:
    properties = tool.parameters.get("properties") if tool else None
    return properties if isinstance(properties, dict) else {}
