"""The text that an answer must be: OpenAI's ``response_format``, and what vLLM adds to it.

Source: OpenAI's API reference; vLLM's ``guided_*`` fields and the ``structured_outputs`` that
followed them.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from typing import Protocol

import msgspec

from ds4trio.errors import RequestError
from ds4trio.protocols.fields import invalid, read, required, unsupported
from ds4trio.request import Choice, JsonSchema, LarkGrammar, OutputFormat, Regex


class JsonSchemaFields(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    schema: dict[str, object] | None = None


class ResponseFormat(msgspec.Struct):
    """``schema`` beside ``json_object`` is llama.cpp's spelling."""

    type: str | None = None
    json_schema: JsonSchemaFields | None = None
    schema: dict[str, object] | None = None


class StructuredOutputs(msgspec.Struct):
    json: dict[str, object] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: object = None


class FormatFields(Protocol):
    """The fields of a request that say what its answer must be."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    guided_json: dict[str, object] | str | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None


def output_format(fields: FormatFields) -> OutputFormat | None:
    """Raises: RequestError, also where more than one is asked for."""
    asked: dict[str, OutputFormat | None] = {
        "response_format": _response_format(fields.response_format),
        "guided_json": _json(fields.guided_json, "guided_json"),
        "guided_regex": _regex(fields.guided_regex, "guided_regex"),
        "guided_choice": _choice(fields.guided_choice, "guided_choice"),
        "guided_grammar": _grammar(fields.guided_grammar, "guided_grammar"),
    }
    if fields.structured_outputs is not None:
        asked |= _structured(fields.structured_outputs)
    formats = [(param, format_) for param, format_ in asked.items() if format_ is not None]
    if len(formats) > 1:
        raise invalid(formats[1][0], f"cannot be combined with {formats[0][0]}")
    return formats[0][1] if formats else None


def _response_format(asked: ResponseFormat | None) -> OutputFormat | None:
    if asked is None:
        return None
    match asked.type:
        case None | "text":
            return None
        case "json_object":
            return JsonSchema(asked.schema or {}, param="response_format.schema")
        case "json_schema":
            at = "response_format.json_schema"
            schema = required(asked.json_schema, at)
            return JsonSchema(
                schema.schema or {}, schema.name, schema.description, param=f"{at}.schema"
            )
        case _:
            raise unsupported("response_format.type", "not one of text, json_object, json_schema")


def _structured(asked: StructuredOutputs) -> dict[str, OutputFormat | None]:
    if asked.structural_tag is not None:
        raise unsupported("structured_outputs.structural_tag")
    return {
        "structured_outputs.json": _json(asked.json, "structured_outputs.json"),
        "structured_outputs.json_object": JsonSchema({}) if asked.json_object else None,
        "structured_outputs.regex": _regex(asked.regex, "structured_outputs.regex"),
        "structured_outputs.choice": _choice(asked.choice, "structured_outputs.choice"),
        "structured_outputs.grammar": _grammar(asked.grammar, "structured_outputs.grammar"),
    }


def _json(schema: dict[str, object] | str | None, param: str) -> OutputFormat | None:
    """A schema, or its JSON text."""
    if isinstance(schema, str):
        try:
            schema = read(schema.encode(), dict[str, object])
        except RequestError:
            raise invalid(param, "neither a JSON schema nor the text of one") from None
    return None if schema is None else JsonSchema(schema, param=param)


def _regex(pattern: str | None, param: str) -> OutputFormat | None:
    return None if pattern is None else Regex(pattern, param)


def _choice(options: list[str] | None, param: str) -> OutputFormat | None:
    if options is None:
        return None
    if not options:
        raise invalid(param, "nothing to choose from")
    return Choice(tuple(options), param)


def _grammar(grammar: str | None, param: str) -> OutputFormat | None:
    return None if grammar is None else LarkGrammar(grammar, param)
