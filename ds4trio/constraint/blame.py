"""Of which field of a request it is the fault that nothing can be written as it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.errors import RequestError
from ds4trio.request import JsonSchema, LarkGrammar

if TYPE_CHECKING:
    from ds4trio.constraint.grammar import GrammarCompiler
    from ds4trio.request import GenerationRequest, OutputFormat, ToolSpec


def blamed(
    grammars: GrammarCompiler, request: GenerationRequest, error: RequestError
) -> RequestError:
    """``error``, or that of the first part that cannot be used by itself: what an answer must be
    may be made of several that the request asks for. Runs on: any thread."""
    for part in (*map(_form_of_calls, request.tools), request.output_format):
        try:
            if part is not None:
                grammars.compile(part)
        except RequestError as own:
            return own
    return error


def _form_of_calls(tool: ToolSpec) -> OutputFormat | None:
    """What a call of the tool must look like, by itself."""
    if tool.grammar is None:
        return JsonSchema({"type": "object", **tool.parameters}, param=tool.param)
    return LarkGrammar(tool.grammar, tool.param) if tool.grammar else None
