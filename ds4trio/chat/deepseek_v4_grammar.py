"""Grammars that hold DeepSeek V4 to DSML.

Source: llguidance's dialect of Lark (its ``docs/syntax.md``: ``%json``, ``%lark``, ``suffix``).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ds4trio.chat.call_grammar import form_rule
from ds4trio.chat.call_reader import INPUT_KEY
from ds4trio.chat.deepseek_v4_dsml import DSML, MARK, PLAIN
from ds4trio.chat.tool_choice import forced_tools
from ds4trio.request import LarkGrammar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ds4trio.request import GenerationRequest, OutputFormat, ToolSpec

    Schema = Mapping[str, object]

_LINE_END = r'"\n"'
_VALUE_END = f"</{MARK}parameter>"
#: JSON as the model was trained to write it. It leaves no room for endless space.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: A text ends with the first tag that ends it. ``json``: any value, of a parameter of any name.
_COMMON = f"""
text[suffix={json.dumps(_VALUE_END, ensure_ascii=False)}]: /(?s:.*)/
json: %json {json.dumps({"x-guidance": _SPACING})}
parameter: "<{MARK}parameter name=\\"" /[^"<>\\n]+/ "\\" string=\\"" any_value "\\n"
any_value: "true\\">" text | "false\\">" json "{_VALUE_END}"
"""
_BLOCK = re.escape(DSML.block[0])
#: How calls may begin in other spellings, or with other tags, that are read too.
_OTHERS = "|".join(
    (
        *map(re.escape, (*DSML.block[1:], *DSML.call)),
        *(rf"{re.escape(tag)}[^>]*>\s*<invoke" for tag in PLAIN.block),
        rf"{_BLOCK}([^>]|>[^\n])",
    )
)
_LEAD_END = json.dumps(f"{DSML.block[0]}>\n", ensure_ascii=False)
#: Text without calls; and text up to calls.
_PROSE = rf"""
PROSE: ~/(?s:.*)({_BLOCK}|{_OTHERS})(?s:.*)/
LEAD: ~/(?s:.*)({_OTHERS})(?s:.*)/
lead[suffix={_LEAD_END}]: LEAD
"""


def answer_format(request: GenerationRequest, *, in_block: bool) -> OutputFormat | None:
    """What a request demands of the answer's text.

    A forced call takes the place of any other form; where calls are free, the answer either calls
    or has the form. Without a form it is any text, then maybe calls: held to their tools, if these
    are strict. ``in_block``: the prompt has begun the calls. Raises: RequestError.
    """
    tools, parallel = forced_tools(request), request.parallel_tool_calls
    if tools is not None:
        return LarkGrammar(f"start: calls\n{_calls(tools, parallel=parallel, in_block=in_block)}")
    form, tools = request.output_format, request.tools
    if not tools or request.tool_choice == "none":
        return form
    if form is not None:
        rules = _calls(tools, parallel=parallel, in_block=False)
        return LarkGrammar(f"start: calls | answer\nanswer: {form_rule(form)}\n{rules}")
    if not any(_is_held(tool) for tool in tools):
        return None
    free = [tool if _is_held(tool) else replace(tool, parameters={}) for tool in tools]
    rules = _calls(free, parallel=parallel, in_block=True)
    return LarkGrammar(f"start: PROSE | lead calls\n{_PROSE}{rules}")


def _is_held(tool: ToolSpec) -> bool:
    """Whether its calls must be what it says even where the model is free to call it."""
    return tool.strict or bool(tool.grammar)


def _calls(tools: Sequence[ToolSpec], *, parallel: bool, in_block: bool) -> str:
    begin = "" if in_block else _literal(f"\n\n<{MARK}tool_calls>\n")
    end = _literal(f"</{MARK}tool_calls>")
    rules = [f"calls: {begin} call{'+' if parallel else ''} {end}"]
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        rules += _call(f"call_{index}", tool)
    return "\n".join(rules) + _COMMON


def _call(rule: str, tool: ToolSpec) -> Iterator[str]:
    begin, end = _literal(f'<{MARK}invoke name="{tool.name}">\n'), _literal(f"</{MARK}invoke>\n")
    if tool.grammar is not None:
        yield f"{rule}: {begin} {rule}_0 {end}"
        value = f"%lark {{\n{tool.grammar}\n}} {_literal(_VALUE_END)}" if tool.grammar else "text"
        yield f"{rule}_0: {_begin_value(INPUT_KEY, is_string=True)} {value} {_LINE_END}"
        return
    properties = _mapping(tool.parameters.get("properties"))
    required = tool.parameters.get("required")
    must = required if isinstance(required, list) else []
    parts = []
    for index, (name, schema) in enumerate(properties.items()):
        parts.append(f"{rule}_{index}" + ("" if name in must else "?"))
        yield f"{rule}_{index}: {_parameter(name, _mapping(schema), tool.parameters)}"
    if tool.parameters.get("additionalProperties", not properties):
        parts.append("parameter*")
    yield f"{rule}: {begin} {' '.join(parts)} {end}"


def _parameter(name: str, schema: Schema, root: Schema) -> str:
    """A parameter is text, or JSON, or may be either. Of text only a choice is held to."""
    options = _texts(schema, root)
    forms = []
    if options is not None:
        text = " | ".join(_literal(option + _VALUE_END) for option in options) or "text"
        forms.append(f"{_begin_value(name, is_string=True)} ({text})")
    if options is None or not _is_text_only(schema, root):
        whole = {**schema, "x-guidance": _SPACING}
        whole |= {key: root[key] for key in ("$defs", "definitions") if key in root}
        value = json.dumps(whole, ensure_ascii=False)
        forms.append(f"{_begin_value(name, is_string=False)} %json {value} {_literal(_VALUE_END)}")
    return f"({' | '.join(forms)}) {_LINE_END}"


def _begin_value(name: str, *, is_string: bool) -> str:
    word = "true" if is_string else "false"
    return _literal(f'<{MARK}parameter name="{name}" string="{word}">')


def _kinds(schema: Schema, root: Schema) -> set[str] | None:
    """The JSON types that a schema allows; None if it does not say."""
    schema = _resolved(schema, root)
    match schema:
        case {"enum": list(values)}:
            return {"string" if isinstance(value, str) else "other" for value in values}
        case {"const": value}:
            return {"string" if isinstance(value, str) else "other"}
        case {"type": str(kind)}:
            return {kind}
        case {"type": list(kinds)}:
            return {str(kind) for kind in kinds}
        case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
            kinds = [_kinds(_mapping(choice), root) for choice in choices]
            known = [kind for kind in kinds if kind is not None]
            return set().union(*known) if len(known) == len(kinds) else None
    return None


def _texts(schema: Schema, root: Schema) -> list[str] | None:
    """The texts that a value may be; none of them: any; None: it can't be a text."""
    kinds = _kinds(schema, root)
    if kinds is not None and "string" not in kinds:
        return None
    match _resolved(schema, root):
        case {"enum": list(values)}:
            return [value for value in values if isinstance(value, str)]
        case {"const": str(value)}:
            return [value]
    return []


def _is_text_only(schema: Schema, root: Schema) -> bool:
    return _kinds(schema, root) == {"string"}


def _resolved(schema: Schema, root: Schema) -> Schema:
    """The definition that a schema refers to, if it is in the same document."""
    match schema.get("$ref"):
        case str(reference) if reference.startswith("#/"):
            found: object = root
            for key in reference[2:].split("/"):
                found = _mapping(found).get(key)
            return {} if "$ref" in _mapping(found) else _mapping(found)
    return schema


def _mapping(value: object) -> Schema:
    return value if isinstance(value, dict) else {}


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
