"""A client that leaves while the model thinks, or writes a tool call: the work ends alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dialects import DIALECTS, Dialect, whole_or_stream
from matrix import CHUNK, CHUNKS, WAYS, Cell, Phase, Way, padded, request_lines
from serving import serving

from ds4trio.chat.template import TemplateChatFormat
from ds4trio.testing import END_ID, ByteTokenizer

if TYPE_CHECKING:
    from trio.testing import MockClock

#: Plain lines, as the scripted engine's own; it tells of the markup of thoughts and calls.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
    '{% for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
    "{% if tools %}{% endif %}assistant: {% if thinking %}{% endif %}{# </think> #}"
)
#: Tokens within the markup before the client leaves.
DEEP = 5
THINKING, CALLING = "<think>", '<tool_call>{"name": "f", "arguments": {"x": "'
PHASES = [
    Phase(
        "thinking",
        "decode",
        CHUNKS + len(THINKING) + DEEP,
        said=padded(THINKING),
        signs=(b"reasoning_content", b"thinking_delta", b"response.reasoning_text.delta"),
    ),
    Phase(
        "tool arguments",
        "decode",
        CHUNKS + len(CALLING) + DEEP,
        said=padded(CALLING),
        signs=(b'"arguments":"{', b"input_json_delta", b"function_call_arguments.delta"),
        offers=True,
    ),
]


@whole_or_stream
@pytest.mark.parametrize(
    "way", [way for way in WAYS if way.outcome != "completed"], ids=lambda way: way.name
)
@pytest.mark.parametrize(
    "dialect", [d for d in DIALECTS if d.name != "completions"], ids=lambda d: d.name
)
async def test_leaving_within_markup(
    mock_clock: MockClock, dialect: Dialect, stream: bool, way: Way
) -> None:
    chat_format = TemplateChatFormat(TEMPLATE, ByteTokenizer(), variables={}, stop_ids={END_ID})
    settings = {"max_running": 2, "prefill_chunk_tokens": CHUNK, **way.settings}
    with request_lines() as lines:
        async with serving(chat_format=chat_format, **settings) as server:
            for phase in PHASES:
                cell = Cell(server, mock_clock, dialect, way, phase, stream=stream)
                try:
                    await cell.run(lines)
                except BaseException as error:
                    error.add_note(f"in the phase: {phase.name}")
                    raise
