"""The conversation of a Messages request: system, turns, and the blocks they are made of.

Source: Anthropic's API reference, and what Claude Code sends.

Blocks are read by their ``type``. Those that only Anthropic's own server writes (its tools, their
results, redacted thinking) say nothing to another model and are left out, as is ``cache_control``:
it moves from turn to turn, and must not change a prompt.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from collections.abc import Mapping, Sequence

import msgspec

from ds4trio.protocols.anthropic_tools import AnthropicTool, ChangedTool, definition
from ds4trio.protocols.fields import invalid, required, to_text, unsupported
from ds4trio.request import Message, ToolCall

#: Claude Code's accounting. It differs from session to session, and would part their prompts at
#: the first token.
_BILLING = "x-anthropic-billing-header"


class Source(msgspec.Struct):
    """Of a document."""

    type: str | None = None
    data: str | None = None
    content: "Content" = None


class Block(msgspec.Struct):
    """Any block: which fields are read depends on its type."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    # tool_use
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    # tool_result, and what only has to be recognised
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: "AnyContent" = None
    # tool_reference, tool_addition, tool_removal
    tool_name: str | None = None
    tool: ChangedTool | None = None
    # document, search_result
    title: str | None = None
    context: str | None = None
    source: Source | str | None = None


Content = str | list[Block] | None
#: Results of Anthropic's own tools are objects.
AnyContent = Content | dict[str, object]


class Turn(msgspec.Struct):
    role: str | None = None
    content: Content = None


class Conversant:
    """Makes messages of turns. ``tools`` are those of the request, by name."""

    def __init__(self, tools: Mapping[str, AnthropicTool]) -> None:
        self._tools = tools

    def messages(self, system: Content, turns: Sequence[Turn] | None) -> tuple[Message, ...]:
        """Raises: RequestError."""
        turns = required(turns, "messages")
        if not turns:
            raise invalid("messages", "at least one message is needed")
        out: list[Message] = []
        if text := _system(system):
            out.append(Message("system", text))
        for i, turn in enumerate(turns):
            try:
                out += self._turn(turn, f"messages[{i}]")
            except RecursionError:
                raise invalid(f"messages[{i}].content", "nested too deeply") from None
        return tuple(out)

    def _turn(self, turn: Turn, at: str) -> list[Message]:
        content = f"{at}.content"
        match required(turn.role, f"{at}.role"):
            case "user":
                return self._user(_blocks(turn.content, content), content)
            case "assistant":
                return [self._assistant(_blocks(turn.content, content), content)]
            case "system":
                return [Message("system", self._text(turn.content, content))]
            case _:
                raise invalid(f"{at}.role", "not one of user, assistant, system")

    def _user(self, blocks: Sequence[Block], at: str) -> list[Message]:
        """A message for each tool result and for each run of other blocks, in their order."""
        out: list[Message] = []
        run: list[str] = []
        for i, block in enumerate(blocks):
            if block.type != "tool_result":
                run.append(self._plain(block, f"{at}[{i}]"))
                continue
            if run:
                out.append(Message("user", _join(run)))
                run = []
            out.append(self._tool_result(block, f"{at}[{i}]"))
        if run or not out:
            out.append(Message("user", _join(run)))
        return out

    def _tool_result(self, block: Block, at: str) -> Message:
        text = self._text(block.content, f"{at}.content")
        if block.is_error:
            text = f"Error: {text}"
        id_ = required(block.tool_use_id, f"{at}.tool_use_id")
        return Message("tool", text, tool_call_id=id_)

    def _assistant(self, blocks: Sequence[Block], at: str) -> Message:
        said: list[str] = []
        thought: list[str] = []
        calls: list[ToolCall] = []
        for i, block in enumerate(blocks):
            match required(block.type, f"{at}[{i}].type"):
                case "text":
                    said.append(required(block.text, f"{at}[{i}].text"))
                case "thinking":
                    thought.append(block.thinking or "")
                case "tool_use":
                    calls.append(_call(block, f"{at}[{i}]"))
                case "compaction":
                    said.append(self._text(block.content, f"{at}[{i}].content"))
                case _:
                    pass  # redacted thinking; tools that another server ran, and their results
        reasoning = "".join(thought) or None
        return Message("assistant", "".join(said), reasoning=reasoning, tool_calls=tuple(calls))

    def _text(self, content: AnyContent, at: str) -> str:
        blocks = enumerate(_blocks(content, at))
        return _join([self._plain(block, f"{at}[{i}]") for i, block in blocks])

    def _plain(self, block: Block, at: str) -> str:
        """A block as text. Raises: RequestError for one that this model cannot read."""
        match required(block.type, f"{at}.type"):
            case "text":
                return required(block.text, f"{at}.text")
            case "tool_reference":
                return self._definition(required(block.tool_name, f"{at}.tool_name"))
            case "tool_addition":
                return self._added(required(block.tool, f"{at}.tool"), f"{at}.tool")
            case "tool_removal":
                tool = required(block.tool, f"{at}.tool")
                return f"The tool {required(tool.name, f'{at}.tool.name')} is gone."
            case "document":
                return _join([*_headings(block), self._document(block, at)])
            case "search_result":
                text = self._text(block.content, f"{at}.content")
                return _join([*_headings(block), text])
            case kind:
                raise unsupported(f"{at}.type", f"{kind!r}: this model reads only text")

    def _document(self, block: Block, at: str) -> str:
        match block.source:
            case Source(type="text", data=str(text)):
                return text
            case Source(type="content", content=content):
                return self._text(content, f"{at}.source.content")
        raise unsupported(f"{at}.source", "this model reads only text")

    def _added(self, tool: ChangedTool, at: str) -> str:
        if tool.definition is not None:
            return definition(tool.definition)
        return self._definition(required(tool.name, f"{at}.name"))

    def _definition(self, name: str) -> str:
        tool = self._tools.get(name)
        return name if tool is None else definition(tool)


def _blocks(content: AnyContent, at: str) -> Sequence[Block]:
    if isinstance(content, str):
        return [Block(type="text", text=content)]
    if isinstance(content, dict):
        raise invalid(at, "expected string or array, got object")
    return content or []


def _system(system: Content) -> str:
    blocks = enumerate(_blocks(system, "system"))
    texts = [required(block.text, f"system[{i}].text") for i, block in blocks]
    return _join([text for text in texts if not text.startswith(_BILLING)])


def _call(block: Block, at: str) -> ToolCall:
    return ToolCall(
        required(block.id, f"{at}.id"),
        required(block.name, f"{at}.name"),
        to_text(block.input or {}, f"{at}.input"),
    )


def _headings(block: Block) -> list[str]:
    source = block.source if isinstance(block.source, str) else None
    return [line for line in (block.title, source, block.context) if line]


def _join(texts: Sequence[str]) -> str:
    """Blocks are paragraphs of their own, not pieces of one."""
    return "\n".join(texts)
