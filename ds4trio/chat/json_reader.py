"""JSON that arrives a character at a time: where it ends, and what its members are.

Source: RFC 8259. Control characters inside a string are let pass, as models forget to escape them.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

_SPACE = " \t\r\n"
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SCALAR_CHARS = frozenset("+-.0123456789Eaeflnrstu")
#: The inside of a string as far as it can be decoded; not half a surrogate pair.
_WHOLE_CHARS = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}(?=\\u[0-9a-fA-F]{4}|"|\\[^u]|[^\\])'
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*"
)


class Progress(Enum):
    """What a character was to the JSON that is being read."""

    PART = auto()
    LAST = auto()
    #: The value had ended before it: it is not part of it.
    PAST = auto()
    WRONG = auto()


class _Expected(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class ValueReader:
    """Follows one JSON value."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._expected = _Expected.VALUE
        self._scalar = ""
        #: Whether the text so far ends inside a string.
        self.in_string = False
        self._is_key = False
        # What is left of an escape: "\\", or the four digits of "\\u".
        self._escape = ""

    def feed(self, char: str) -> Progress:
        """After any answer but PART the reader is spent."""
        if self.in_string:
            return self._string_char(char)
        if self._scalar:
            if char in _SCALAR_CHARS:
                self._scalar += char
                return Progress.PART
            if not _SCALAR.fullmatch(self._scalar):
                return Progress.WRONG
            self._scalar = ""
            if self._end_value() is Progress.LAST:
                return Progress.PAST
        return Progress.PART if char in _SPACE else self._structure(char)

    def _structure(self, char: str) -> Progress:
        expected = self._expected
        if expected in (_Expected.VALUE, _Expected.VALUE_OR_END):
            if char in "{[":
                self._closers.append("}" if char == "{" else "]")
                is_object = char == "{"
                self._expected = _Expected.KEY_OR_END if is_object else _Expected.VALUE_OR_END
                return Progress.PART
            if char == '"':
                self.in_string, self._is_key = True, False
                return Progress.PART
            if char in "-0123456789tfn":
                self._scalar = char
                return Progress.PART
        if expected in (_Expected.KEY, _Expected.KEY_OR_END) and char == '"':
            self.in_string = self._is_key = True
            return Progress.PART
        if expected is _Expected.COLON and char == ":":
            self._expected = _Expected.VALUE
            return Progress.PART
        return self._comma_or_end(char)

    def _comma_or_end(self, char: str) -> Progress:
        closer = self._closers[-1] if self._closers else None
        if self._expected is _Expected.COMMA_OR_END and char == ",":
            self._expected = _Expected.KEY if closer == "}" else _Expected.VALUE
            return Progress.PART
        may_end = (_Expected.COMMA_OR_END, _Expected.KEY_OR_END, _Expected.VALUE_OR_END)
        if self._expected in may_end and char == closer:
            self._closers.pop()
            return self._end_value()
        return Progress.WRONG

    def _string_char(self, char: str) -> Progress:
        if self._escape == "\\":
            self._escape = "1234" if char == "u" else ""
            return Progress.PART if char in '"\\/bfnrtu' else Progress.WRONG
        if self._escape:
            self._escape = self._escape[1:]
            return Progress.PART if char in "0123456789abcdefABCDEF" else Progress.WRONG
        if char == "\\":
            self._escape = char
        elif char == '"':
            self.in_string = False
            if not self._is_key:
                return self._end_value()
            self._expected = _Expected.COLON
        return Progress.PART

    def _end_value(self) -> Progress:
        self._expected = _Expected.COMMA_OR_END
        return Progress.PART if self._closers else Progress.LAST


class ObjectReader:
    """Follows one JSON object, from its ``{``, and says which characters are whose value."""

    def __init__(self) -> None:
        self._expected: str = "{"
        self._key_text = ""
        self._value = ValueReader()
        #: The member whose value is being read.
        self.key = ""
        #: What the last character made certain of this value, control characters escaped.
        self.value_text = ""
        #: Whether the last character is the value's first.
        self.value_begun = False
        #: Whether the last character showed the value to be whole.
        self.value_ended = False

    def feed(self, char: str) -> Progress:
        """After any answer but PART the reader is spent; PAST it never says."""
        self.value_text, self.value_begun, self.value_ended = "", False, False
        if self._expected == "value":
            return self._value_char(char)
        if self._expected == "key":
            return self._key_char(char)
        if char in _SPACE and self._expected != "{":
            return Progress.PART
        return self._structure(char)

    def _structure(self, char: str) -> Progress:
        expected = self._expected
        if char == "}" and expected in ("key or }", ", or }"):
            return Progress.LAST
        if char == '"' and expected in ("key or }", "next key"):
            self._value, self._key_text, self._expected = ValueReader(), "", "key"
            return self._key_char(char)
        if expected == "first char":
            self._value, self._expected, self.value_begun = ValueReader(), "value", True
            return self._value_char(char)
        after = {"{": ("{", "key or }"), ":": (":", "first char"), ",": (", or }", "next key")}
        needed, following = after.get(char, ("", ""))
        if expected != needed:
            return Progress.WRONG
        self._expected = following
        return Progress.PART

    def _key_char(self, char: str) -> Progress:
        self._key_text += char
        progress = self._value.feed(char)
        if progress is Progress.LAST:
            self.key, self._expected = decoded_string(self._key_text), ":"
            return Progress.PART
        return progress

    def _value_char(self, char: str) -> Progress:
        was_in_string = self._value.in_string
        progress = self._value.feed(char)
        match progress:
            case Progress.PAST:
                self.value_ended, self._expected = True, ", or }"
                return Progress.PART if char in _SPACE else self._structure(char)
            case Progress.LAST:
                self.value_ended, self._expected = True, ", or }"
            case Progress.WRONG:
                return progress
        is_raw = was_in_string and char < " "
        self.value_text = json.dumps(char)[1:-1] if is_raw else char
        return Progress.PART


class StringDecoder:
    """A JSON string, piece by piece, to the text it means."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def feed(self, text: str) -> str:
        """The text that more of the string adds. The string begins with its quotation mark."""
        self._held += text
        if not self._begun:
            self._begun, self._held = bool(self._held), self._held[1:]
        match = _WHOLE_CHARS.match(self._held)
        whole = match[0] if match else ""
        self._held = self._held[len(whole) :]
        return decoded_string(f'"{whole}"') if whole else ""


def decoded_string(text: str) -> str:
    """What a JSON string means; half surrogate pairs are U+FFFD. Raises: ValueError."""
    value = str(json.loads(text, strict=False))
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
