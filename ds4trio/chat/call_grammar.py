"""Grammars that hold a model to its own tool markup.

Source: llguidance's dialect of Lark (its ``docs/syntax.md``: ``%json``, ``%lark``).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, assert_never

from ds4trio.chat.messages import tool_parameters
from ds4trio.chat.tool_choice import forced_tools
from ds4trio.errors import RequestError
from ds4trio.request import Choice, JsonSchema, LarkGrammar, OutputFormat, Regex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.chat.markup import ToolMarkup
    from ds4trio.request import GenerationRequest, ToolSpec

#: JSON as chat templates write it, so as models have seen it. It leaves no room for endless space.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: What a Lark string may not hold as it stands, and JSON may.
_CONTROL = r"[\x7f-\x9f]"
_SLASH_OR_ESCAPE = r"\\.|[/\n]"


def answer_format(request: GenerationRequest, markup: ToolMarkup) -> OutputFormat | None:
    """What a request demands of the answer's text.

    A forced call takes the place of any other form; where calls are free, the answer either calls
    or has the form. Raises: RequestError.
    """
    tools = forced_tools(request)
    if tools is None:
        form = request.output_format
        if form is None or not request.tools or request.tool_choice == "none":
            return form
        calls = _calls(request, request.tools, markup)
        return LarkGrammar(f"start: calls | answer\n{calls}answer: {form_rule(form)}\n")
    for tool in tools:
        if tool.grammar:
            raise RequestError(
                f"this model writes a tool's input as JSON: it cannot be held to the grammar of"
                f" {tool.name!r}; leave the choice of tools to it",
                param="tool_choice",
            )
    return LarkGrammar(f"start: calls\n{_calls(request, tools, markup)}")


def _calls(request: GenerationRequest, tools: Sequence[ToolSpec], markup: ToolMarkup) -> str:
    one = not request.parallel_tool_calls or markup.most_calls == 1
    calls = "call" if one else f"call ({_literal(markup.between)}call)*"
    before, after = (_literal(text) if text else "" for text in (markup.before, markup.after))
    rules = [f"calls: {before}{calls}{after}"]
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        name = json.dumps(tool.name, ensure_ascii=False)
        # Cut where JSON is, so that an answer may also be other JSON that begins alike.
        pieces = ["{", '"name"', ": ", name, ", ", f'"{markup.arguments_key}"', ": "]
        rules.append(f'call_{index}: {"".join(map(_literal, pieces))}arguments_{index} "}}"')
        rules.append(f"arguments_{index}: %json {_json(tool_parameters(tool))}")
    return "\n".join(rules) + "\n"


def form_rule(form: OutputFormat) -> str:
    """The right side of a rule."""
    match form:
        case JsonSchema():
            return f"%json {_json(form.schema or {'type': 'object'})}"
        case Regex():
            return f"/{re.sub(_SLASH_OR_ESCAPE, _escaped, form.pattern, flags=re.DOTALL)}/"
        case LarkGrammar():
            return f"%lark {{\n{form.grammar}\n}}"
        case Choice():
            return " | ".join(map(_literal, form.options))
    assert_never(form)


def _escaped(match: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(match[0], match[0])


def _literal(text: str) -> str:
    """A text as a Lark string, with spaces around it."""
    quoted = json.dumps(text, ensure_ascii=False)
    return f" {re.sub(_CONTROL, _code, quoted)} "


def _code(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _json(schema: Mapping[str, object]) -> str:
    return json.dumps({"x-guidance": _SPACING, **schema}, ensure_ascii=False)
