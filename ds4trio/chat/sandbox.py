"""Hugging Face chat templates as Jinja2 code that cannot do harm.

Source: transformers' ``chat_template_utils`` for what a template may use (its tests are the
specification). A template comes with a model, so it is not trusted: it sees no Python internals,
changes nothing it is given, and cannot make texts without bound.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import nodes
    from jinja2.parser import Parser
    from jinja2.runtime import Context

#: Characters. A guess: twice the largest request body that is accepted by default.
MAX_RENDERED_CHARS = 64 * 1024 * 1024
_MAX_POWER_OPERAND = 1024


def compile_template(source: str) -> jinja2.Template:
    """Raises: jinja2.TemplateSyntaxError."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(source)


def render_template(template: jinja2.Template, variables: Mapping[str, object]) -> str:
    """Raises: whatever the template's code does."""
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        size += len(piece)
        if size > MAX_RENDERED_CHARS:
            raise SecurityError("the rendered conversation is too long")
        pieces.append(piece)
    return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on what one expression can make."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise SecurityError("the power is too large")
        for sequence, times in ((left, right), (right, left)):
            if (
                isinstance(sequence, str | bytes | list | tuple)
                and isinstance(times, int)
                and len(sequence) * times > MAX_RENDERED_CHARS
            ):
                raise SecurityError("the repeated text is too long")
        result: object = super().call_binop(context, operator, left, right)
        return result


def _is_small(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= _MAX_POWER_OPERAND


class _Generation(Extension):
    """``{% generation %}`` marks the model's own words, for training. Here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's own, this one does not escape HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
