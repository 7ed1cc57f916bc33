"""Whether and how hard to think, in the many spellings that chat clients use.

Source: OpenAI (``reasoning_effort``), DeepSeek (``thinking``), Qwen (``enable_thinking`` and
``thinking_budget``), vLLM (``chat_template_kwargs``), OpenRouter (``reasoning``), ollama
(``think``).
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from typing import Literal

import msgspec

from ds4trio.protocols.openai_fields import GenerationFields
from ds4trio.protocols.shared_fields import THINKING_SWITCHES, NonNegative
from ds4trio.request import Effort, Thinking


class ThinkingSwitch(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive", "auto"] | None = None
    budget_tokens: NonNegative | None = None


class Reasoning(msgspec.Struct):
    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: NonNegative | None = None


class TemplateVariables(msgspec.Struct):
    """Of what a chat template can be told, only this is served; the rest is ignored."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    thinking_budget: NonNegative | None = None
    reasoning_effort: Effort | None = None


class ThinkingFields(GenerationFields, kw_only=True):
    reasoning_effort: Effort | None = None
    thinking: bool | ThinkingSwitch | None = None
    enable_thinking: bool | None = None
    thinking_budget: NonNegative | None = None
    think: bool | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: TemplateVariables | None = None


def thinking(fields: ThinkingFields) -> Thinking:
    """One "no" outweighs everything else; an effort, or a budget, is a "yes"."""
    switch = fields.thinking
    variables = fields.chat_template_kwargs or TemplateVariables()
    reasoning = fields.reasoning or Reasoning()
    words = [
        fields.enable_thinking,
        fields.think,
        reasoning.enabled,
        variables.enable_thinking,
        variables.thinking,
    ]
    efforts = [fields.reasoning_effort, reasoning.effort, variables.reasoning_effort]
    budgets = [fields.thinking_budget, reasoning.max_tokens, variables.thinking_budget]
    if isinstance(switch, ThinkingSwitch):
        words.append(THINKING_SWITCHES.get(switch.type))
        budgets.append(switch.budget_tokens)
    else:
        words.append(switch)
    effort = next((effort for effort in efforts if effort is not None), None)
    budget = next((budget for budget in budgets if budget is not None), None)
    return decide(words, effort, budget)


def decide(words: list[bool | None], effort: Effort | None, budget_tokens: int | None) -> Thinking:
    """The request's wish from all that was said of it; None is silence."""
    if False in words or effort == "none" or budget_tokens == 0:
        return Thinking(enabled=False, effort=effort)
    enabled = True in words or effort is not None or budget_tokens is not None
    return Thinking(enabled or None, effort, budget_tokens)
