"""DSML: how DeepSeek V4 writes tool calls.

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="weather">
    <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

A ``string="true"`` value stands as it is, without any escapes; any other is JSON.

Source: DeepSeek's ``deepseek-recipe`` (its rendering, and its stream processor). The spellings
beyond the first are what models were reported to slip into.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

#: FULLWIDTH VERTICAL LINE
_BAR = "\uff5c"
MARK = f"{_BAR}DSML{_BAR}"
#: What stands for `MARK` after a ``<``.
_SLIPS = (f"{_BAR}{MARK}{_BAR}", "|DSML|", f"DSML{_BAR}")
#: Longer ones are no headers: no model is to be waited for without end.
MAX_HEADER_CHARS = 1024
_QUOTED = r"\"[^\"\n]*\"|'[^'\n]*'|“[^”\n]*”|”[^”\n]*”"
_HEADER = re.compile(rf"((?:\s(?:{_QUOTED}|[^>\"'“”\n])*)?)>")
_ATTRIBUTE = re.compile(rf"(?:^|(?<=\s))(\w+)\s*=\s*({_QUOTED})")


@dataclass(frozen=True)
class Tags:
    """The tags of one spelling, or of several that may be mixed, each without its ``>``."""

    marks: tuple[str, ...]

    @cached_property
    def block(self) -> tuple[str, ...]:
        return tuple(f"<{mark}tool_calls" for mark in self.marks)

    @cached_property
    def call(self) -> tuple[str, ...]:
        return tuple(f"<{mark}invoke" for mark in self.marks)

    @cached_property
    def parameter(self) -> tuple[str, ...]:
        return tuple(f"<{mark}parameter" for mark in self.marks)

    @cached_property
    def block_end(self) -> tuple[str, ...]:
        return tuple(f"</{mark}tool_calls" for mark in self.marks)

    @cached_property
    def call_end(self) -> tuple[str, ...]:
        return tuple(f"</{mark}invoke" for mark in self.marks)

    @cached_property
    def parameter_end(self) -> tuple[str, ...]:
        return tuple(f"</{mark}parameter" for mark in self.marks)


DSML = Tags((MARK, *_SLIPS))
#: What looks like XML is only looked for in a block that began so: values are full of XML.
PLAIN = Tags(("",))


@dataclass(frozen=True, slots=True)
class Header:
    """What stands between a tag's name and its ``>``."""

    text: str
    length: int

    def attribute(self, name: str) -> str | None:
        """The attribute's value: as it stands, since DSML has no escapes. Any quotes do."""
        for found, quoted in _ATTRIBUTE.findall(self.text):
            if found == name:
                return str(quoted[1:-1])
        return None


def read_header(text: str, start: int) -> Header | None:
    """The header that begins there; None if there is none (yet)."""
    match = _HEADER.match(text, start)
    return Header(match[1].strip(), len(match[0])) if match else None


def may_become_header(text: str, start: int) -> bool:
    """Whether what begins there, and is not a header, may be one with more text."""
    rest = text[start:]
    return len(rest) < MAX_HEADER_CHARS and "\n" not in rest and (not rest or rest[0].isspace())


def begins_with(text: str, tags: tuple[str, ...], start: int = 0) -> int:
    """The length of the tag that begins there; 0 if none does."""
    return max((len(tag) for tag in tags if text.startswith(tag, start)), default=0)


def may_become(text: str, tags: tuple[str, ...], start: int = 0) -> bool:
    """Whether what begins there is the beginning of a tag, and not all of it."""
    rest = text[start:]
    return any(len(rest) < len(tag) and tag.startswith(rest) for tag in tags)


def find_tag(text: str, tags: tuple[str, ...], start: int = 0) -> tuple[int, int]:
    """Where the first tag begins, and its length. Without any: where one may have begun that is not
    yet whole, else the text's end, and 0. No tag has a ``<`` but its first character."""
    at = text.find("<", start)
    while at >= 0:
        if length := begins_with(text, tags, at):
            return at, length
        if may_become(text, tags, at):
            return at, 0
        at = text.find("<", at + 1)
    return len(text), 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The tags with which a call begins; or, without a name, those of a block that ends."""

    name: str | None
    end: int


def read_opening(text: str, tags: Tags, start: int = 0) -> Opening | Literal["part", "none"]:
    """What begins there: a call, with or without the tag of its block, or the block's end."""
    at = start
    if block := begins_with(text, tags.block, at):
        at += block
        header = read_header(text, at)
        if header is None:
            return _unsure(may_become_header(text, at))
        at += header.length
        at = len(text) - len(text[at:].lstrip())
    elif may_become(text, tags.block, at):
        return "part"
    end, call = begins_with(text, tags.block_end, at), begins_with(text, tags.call, at)
    if not (end or call):
        return _unsure(may_become(text, (*tags.block_end, *tags.call), at))
    at += end or call
    header = read_header(text, at)
    if header is None:
        return _unsure(may_become_header(text, at))
    name = header.attribute("name")
    if call and not name:
        return "none"
    return Opening(name if call else None, at + header.length)


def _unsure(waits: bool) -> Literal["part", "none"]:
    return "part" if waits else "none"
