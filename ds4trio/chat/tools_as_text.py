"""Tools for models whose chat template knows none: all about them is in plain messages.

The calls are asked for in the form that most models have seen (`ds4trio.chat.markup.TAGGED`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ds4trio.chat.markup import TAGGED
from ds4trio.chat.messages import SYSTEM_ROLES, call_arguments, tool_fields
from ds4trio.request import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ds4trio.request import ToolCall, ToolSpec

_INSTRUCTIONS = """\
You can call these tools, each described by a JSON object:
<tools>
{tools}
</tools>

To call a tool, write its name and arguments as a JSON object, and nothing after it:
<tool_call>
{{"name": "the tool's name", "arguments": {{"argument": "value"}}}}
</tool_call>
To call several, write several. Each result comes back between <tool_response> and \
</tool_response>."""


def with_tools_as_text(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """The messages without tool calls and results, the tools explained by the system."""
    plain = list(_plain(messages))
    if not tools:
        return plain
    described = [
        json.dumps(tool_fields(tool, str)["function"], ensure_ascii=False) for tool in tools
    ]
    instructions = _INSTRUCTIONS.format(tools="\n".join(described))
    if plain and plain[0].role in SYSTEM_ROLES:
        content = f"{plain[0].content}\n\n{instructions}"
        return [replace(plain[0], content=content), *plain[1:]]
    return [Message("system", instructions), *plain]


def _plain(messages: Iterable[Message]) -> Iterator[Message]:
    responses: list[str] = []
    for message in messages:
        if message.role == "tool":
            responses.append(f"<tool_response>\n{message.content}\n</tool_response>")
            continue
        if responses:
            yield Message("user", "\n".join(responses))
            responses = []
        content = "\n".join(filter(None, (message.content, _written(message.tool_calls))))
        yield replace(message, content=content, tool_calls=())
    if responses:
        yield Message("user", "\n".join(responses))


def _written(calls: Sequence[ToolCall]) -> str:
    if not calls:
        return ""
    texts = [
        json.dumps({"name": call.name, "arguments": call_arguments(call)}, ensure_ascii=False)
        for call in calls
    ]
    return TAGGED.before + TAGGED.between.join(texts) + TAGGED.after
