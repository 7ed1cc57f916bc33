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
from jinja2 import meta
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import nodes
    from jinja2.parser import Parser
    from jinja2.runtime import Context

    from ds4trio.chat.shield import Disguise

#: Characters. A guess: twice the largest request body that is accepted by default.
MAX_RENDERED_CHARS = 64 * 1024 * 1024
_MAX_POWER_OPERAND = 1024
#: Where `_tojson` finds the disguise: not an identifier, so no template can name it.
_DISGUISE = "the disguise of what users wrote"


def compile_template(source: str) -> jinja2.Template:
    """Raises: jinja2.TemplateSyntaxError."""
    return _environment().from_string(source)


def variables_read(source: str) -> frozenset[str]:
    """Names that a template expects to be given. Raises: jinja2.TemplateSyntaxError."""
    return frozenset(meta.find_undeclared_variables(_environment().parse(source)))


def render_template(
    template: jinja2.Template, variables: Mapping[str, object], disguise: Disguise
) -> str:
    """The text, in which everything that is hidden in the variables is still hidden.

    Raises: whatever the template's code does.
    """
    pieces: list[str] = []
    size = 0
    for piece in template.generate({**variables, _DISGUISE: disguise}):
        size += len(piece)
        if size > MAX_RENDERED_CHARS:
            raise SecurityError("the rendered conversation is too long")
        pieces.append(piece)
    return "".join(pieces)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


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


@jinja2.pass_context
def _tojson(
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    disguise: Disguise = context[_DISGUISE]
    # JSON escapes some of the characters that may be hidden, so it must see them. Unlike Jinja's
    # own, this filter does not escape HTML.
    return disguise.hide(
        json.dumps(
            _revealed(value, disguise),
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
    )


def _revealed(value: object, disguise: Disguise) -> object:
    match value:
        case str():
            return disguise.reveal(value)
        case dict():
            return {_revealed(k, disguise): _revealed(v, disguise) for k, v in value.items()}
        case list() | tuple():
            return [_revealed(item, disguise) for item in value]
    return value
