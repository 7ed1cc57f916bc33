"""How model families mark what is not text in their answers: thoughts and tool calls.

Data, read by the parsers, the grammars and the renderer; a family more is an entry more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingMarkup:
    """What stands before and after the model's thoughts."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class ToolMarkup:
    """How calls are written: JSON objects with ``name`` and arguments, one or a list, after
    ``opening``.

    ``signs`` all stand in the chat templates of models that were trained on it. ``closing`` follows
    a call (or a list of them), if there is one. ``bare``: an answer may also begin with a call,
    without ``opening``; then only a call of a tool that was offered is one.

    ``before``, ``between`` and ``after`` frame calls as the model itself would write them.
    ``most_calls`` and ``call_id_chars`` (letters and digits) are limits of the templates.
    """

    signs: tuple[str, ...]
    opening: str
    before: str
    closing: str = ""
    between: str = ""
    after: str = ""
    arguments_key: str = "arguments"
    bare: bool = False
    most_calls: int | None = None
    call_id_chars: int | None = None


#: Hermes 2 and 3, Qwen 2.5 and 3, SmolLM2 and 3.
TAGGED = ToolMarkup(
    signs=("<tool_call>", '"arguments'),
    opening="<tool_call>",
    closing="</tool_call>",
    before="<tool_call>\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
)
#: Mistral's instruct models, up to the second tokenizer with ``[ARGS]``.
LISTED = ToolMarkup(
    signs=("[TOOL_CALLS]", '"arguments'),
    opening="[TOOL_CALLS]",
    before="[TOOL_CALLS][",
    between=", ",
    after="]",
    call_id_chars=9,
)
#: Llama 3.1 to 3.3.
BARE = ToolMarkup(
    signs=('"parameters": dictionary',),
    opening="<|python_tag|>",
    before="",
    arguments_key="parameters",
    bare=True,
    most_calls=1,
)

TOOL_MARKUPS = (LISTED, TAGGED, BARE)
THINKING_MARKUPS = (ThinkingMarkup("<think>", "</think>"), ThinkingMarkup("[THINK]", "[/THINK]"))


def tool_markup_in(template: str) -> ToolMarkup | None:
    """The markup that a chat template's source tells of."""
    for markup in TOOL_MARKUPS:
        if all(sign in template for sign in markup.signs):
            return markup
    return None


def thinking_markup_in(template: str) -> ThinkingMarkup | None:
    """The markup of the thoughts that a chat template's source tells of."""
    for markup in THINKING_MARKUPS:
        if markup.end in template:
            return markup
    return None
