"""A scripted model that talks, calls tools and thinks: what a test makes it say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.chat.template import TemplateChatFormat
from ds4trio.testing import END_ID, ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: Role and content of each message.
    Messages = Sequence[tuple[str, str]]

#: Before each message; no client sends it.
MARK = "\x1e"
#: What a template must hold for its model to be known as one that calls tools and thinks.
TEMPLATE = (
    "{% for m in messages %}\x1e{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    '{% for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
    "{% if tools %}{% endif %}\x1eassistant: {% if thinking %}{% endif %}{# </think> #}"
)
#: An answer that is held to a form begins within thoughts; then these are the model's.
OPENED = b"<think>\n"
THOUGHT = b"As JSON.</think>"
#: What is asked to be answered without end.
ENDLESS = "And so on."


def talking_format() -> TemplateChatFormat:
    return TemplateChatFormat(TEMPLATE, ByteTokenizer(), variables={}, stop_ids={END_ID})


def talking(answer: Callable[[Messages], str]) -> Callable[[Sequence[int]], int]:
    """A script whose every answer is what ``answer`` makes of the conversation before it."""

    def script(token_ids: Sequence[int]) -> int:
        text = bytes(token_id for token_id in token_ids if token_id < 256)
        asked, _, answered = text.rpartition(MARK.encode() + b"assistant: ")
        messages = [m.partition(": ")[::2] for m in asked.decode().split(MARK)[1:]]
        said = answer(messages).encode()
        if answered.startswith(OPENED):
            answered, said = answered.removeprefix(OPENED), THOUGHT + said
        if messages and messages[-1][1] == ENDLESS:
            return said[len(answered) % len(said)]
        return said[len(answered)] if len(answered) < len(said) else END_ID

    return script


def repeat(messages: Messages) -> str:
    """What was said last, so that a client chooses its answer; a tool's result in a sentence."""
    role, content = messages[-1]
    return f"It is {content}." if role == "tool" else content
