"""The official clients' request types, as plain names."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import typing_extensions

if TYPE_CHECKING:
    from collections.abc import Iterable

_WRAPPERS = (
    typing.Annotated,
    typing_extensions.Required,
    typing_extensions.NotRequired,
    typing.Required,
    typing.NotRequired,
)


def fields_of(*types: Any) -> set[str]:
    """The names of all their fields."""
    return {name for type_ in types for name in get_type_hints(type_)}


def names_within(types: Iterable[Any], through: set[str], without: set[str]) -> set[str]:
    """The names of all fields that may stand in these, and within their fields of the names
    ``through``; but for things whose kind is one of ``without``."""
    found: set[str] = set()
    seen: set[Any] = set()
    waiting = list(types)
    while waiting:
        type_ = _bare(waiting.pop())
        if not typing_extensions.is_typeddict(type_):
            waiting += [part for part in get_args(type_) if not isinstance(part, str)]
        elif type_ not in seen and without.isdisjoint(_kinds(type_)):
            seen.add(type_)
            hints = get_type_hints(type_)
            found |= hints.keys()
            waiting += [hint for name, hint in hints.items() if name in through]
    return found


def kinds_of(*unions: Any) -> set[str]:
    """What ``type`` may be in the members of these unions."""
    return {kind for union in unions for member in _members(union) for kind in _kinds(member)}


def _members(union: object) -> list[Any]:
    union = _bare(union)
    if typing_extensions.is_typeddict(union):
        return [union]
    return [
        member
        for argument in get_args(union)
        if not isinstance(argument, str)
        for member in _members(argument)
    ]


def _kinds(typed_dict: object) -> list[str]:
    hint = _bare(get_type_hints(typed_dict).get("type"))
    options = [hint, *get_args(hint)]
    return [
        str(word)
        for option in map(_bare, options)
        if get_origin(option) is Literal
        for word in get_args(option)
    ]


def _bare(type_: object) -> Any:  # noqa: ANN401 - what a type form is has no type
    while get_origin(type_) in _WRAPPERS:
        type_ = get_args(type_)[0]
    return type_
