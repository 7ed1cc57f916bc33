"""How chat templates are told whether and how hard to think."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ds4trio.request import Effort, Thinking

#: Variables that switch thinking on and off: Qwen 3 and SmolLM3; DeepSeek V3.1 and Granite.
THINKING_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
#: For templates that know three efforts.
_NEAREST: dict[Effort, str] = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}


def thinking_variables(
    thinking: Thinking, template: str, reads: Collection[str]
) -> dict[str, object]:
    """What a template that ``reads`` these variables is told; nothing of what was not asked."""
    enabled = thinking.enabled
    if enabled is None and thinking.effort is not None:
        enabled = thinking.effort != "none"
    variables: dict[str, object] = {}
    if enabled is not None:
        variables |= {name: enabled for name in THINKING_SWITCHES if name in reads}
    if thinking.effort is not None and _EFFORT in reads:
        variables[_EFFORT] = _known_effort(thinking.effort, template)
    return variables


def _known_effort(effort: Effort, template: str) -> str:
    quoted = (f"'{effort}'", f'"{effort}"')
    return effort if any(word in template for word in quoted) else _NEAREST.get(effort, effort)
