"""What each endpoint does with each field that the official clients' request types have."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anthropic.types as a
import anthropic.types.beta as b
import anthropic.types.beta.message_create_params as beta_messages
import anthropic.types.message_create_params as messages
import openai.types.chat.completion_create_params as chat
import openai.types.completion_create_params as completions
import openai.types.responses.response_create_params as responses

from ds4trio.protocols.table import PROTOCOLS

if TYPE_CHECKING:
    from ds4trio.protocols.wire import ParsedRequest

Fields = dict[str, Any]

HELLO = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CALL = {"tools": [FUNCTION]}
FLAT_FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
FLAT_CALL = {"tools": [FLAT_FUNCTION]}
TOOL = {"name": "f", "input_schema": SCHEMA}
TOOLS = {"tools": [TOOL]}
STREAM = {"stream": True}
CACHING: Fields = {"prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h"}
WHO: Fields = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"}


def _lasting(answer: Fields) -> Fields:
    return {k: v for k, v in answer.items() if k not in ("id", "created", "created_at")}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``read`` fields each change what is asked or answered; ``ignored`` ones change nothing;
    ``refused`` ones are refused by their name. ``beside``: what a field needs to have an effect."""

    path: str
    types: tuple[Any, ...]
    least: Fields
    read: Fields
    ignored: Fields
    refused: Fields
    beside: dict[str, Fields] = field(default_factory=dict)

    def parse(self, fields: Fields) -> ParsedRequest:
        return PROTOCOLS[self.path].parse(json.dumps(self.least | fields).encode(), "served")

    def effect(self, fields: Fields) -> object:
        """All that can be seen of a request, but for what differs from one to the next."""
        parsed = self.parse(fields)
        asked = parsed.continuation
        if asked is None:
            opening = [json.loads(event.data) for event in parsed.writer.start()]
            return parsed.generation, parsed.stream, [_lasting(chunk) for chunk in opening]
        answer = _lasting(json.loads(asked.answer.response()))
        kept = asked.previous_id, asked.references, asked.store, asked.background
        return parsed.generation, parsed.stream, answer, kept


ENDPOINTS = [
    Endpoint(
        "/v1/chat/completions",
        (chat.CompletionCreateParamsStreaming, chat.CompletionCreateParamsNonStreaming),
        least={"messages": HELLO},
        read={
            "messages": [{"role": "user", "content": "Ho"}],
            "model": "m",
            "frequency_penalty": 1,
            "presence_penalty": 1,
            "logit_bias": {"5": 1},
            "logprobs": True,
            "top_logprobs": 2,
            "max_completion_tokens": 5,
            "max_tokens": 5,
            "n": 2,
            "parallel_tool_calls": False,
            "reasoning_effort": "high",
            "response_format": {"type": "json_object"},
            "seed": 5,
            "stop": "x",
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "top_p": 0.5,
            "tool_choice": "required",
            **CALL,
        },
        ignored={
            "metadata": {"a": "b"},
            "prediction": {"type": "content", "content": "x"},
            "service_tier": "flex",
            "store": True,
            "verbosity": "low",
            **WHO,
            **CACHING,
        },
        refused={
            "audio": {"format": "wav", "voice": "alloy"},
            "function_call": {"name": "f"},
            "functions": [{"name": "f"}],
            "modalities": ["text", "audio"],
            "moderation": {"model": "omni-moderation-latest"},
            "web_search_options": {},
        },
        beside={"top_logprobs": {"logprobs": True}, "stream_options": STREAM, "tool_choice": CALL},
    ),
    Endpoint(
        "/v1/completions",
        (
            completions.CompletionCreateParamsStreaming,
            completions.CompletionCreateParamsNonStreaming,
        ),
        least={"prompt": "Once"},
        read={
            "prompt": "Twice",
            "model": "m",
            "echo": True,
            "frequency_penalty": 1,
            "presence_penalty": 1,
            "logit_bias": {"5": 1},
            "logprobs": 2,
            "max_tokens": 5,
            "n": 2,
            "seed": 5,
            "stop": "x",
            "stream": True,
            "stream_options": {"continuous_usage_stats": True},
            "temperature": 0.5,
            "top_p": 0.5,
        },
        ignored={"user": "u"},
        refused={"best_of": 2, "suffix": "The end."},
        beside={"stream_options": STREAM},
    ),
    Endpoint(
        "/v1/responses",
        (responses.ResponseCreateParamsStreaming, responses.ResponseCreateParamsNonStreaming),
        least={"input": "Hi"},
        read={
            "input": "Ho",
            "model": "m",
            "background": True,
            "include": ["message.output_text.logprobs"],
            "instructions": "Be brief.",
            "max_output_tokens": 5,
            "max_tool_calls": 5,
            "metadata": {"a": "b"},
            "parallel_tool_calls": False,
            "previous_response_id": "resp_1",
            "reasoning": {"effort": "high"},
            "store": False,
            "stream": True,
            "temperature": 0.5,
            "text": {"format": {"type": "json_object"}},
            "tool_choice": "required",
            "top_logprobs": 2,
            "top_p": 0.5,
            **FLAT_CALL,
            **WHO,
        },
        ignored={
            "access_programs": {"cyber": "standard"},
            "background_options": {"completion_window": "soonest"},
            "context_management": [{"type": "compaction", "compact_threshold": 1000}],
            "image": {"context_compression": "auto"},
            "service_tier": "flex",
            "stream_options": {"include_obfuscation": False},
            # What does not fit is refused, never cut.
            "truncation": "auto",
            **CACHING,
        },
        refused={
            "conversation": "conv_1",
            "moderation": {"model": "omni-moderation-latest"},
            "prompt": {"id": "p"},
        },
        beside={"tool_choice": FLAT_CALL},
    ),
    Endpoint(
        "/v1/messages",
        (
            messages.MessageCreateParamsStreaming,
            messages.MessageCreateParamsNonStreaming,
            beta_messages.MessageCreateParamsStreaming,
            beta_messages.MessageCreateParamsNonStreaming,
            a.MessageCountTokensParams,
            b.MessageCountTokensParams,
        ),
        least={"messages": HELLO},
        read={
            "messages": [{"role": "user", "content": "Ho"}],
            "model": "m",
            "max_tokens": 5,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "stop_sequences": ["x"],
            "stream": True,
            "system": "Be brief.",
            "thinking": {"type": "enabled", "budget_tokens": 2000},
            "tool_choice": {"type": "any"},
            **TOOLS,
        },
        ignored={
            "betas": ["x"],
            "billing_policy": {"type": "billing_policy", "bill_to": "self"},
            "cache_control": {"type": "ephemeral"},
            "container": {"skills": []},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "diagnostics": {"previous_message_id": "msg_1"},
            "fallback_credit_token": "t",
            "fallbacks": "default",
            "inference_geo": "eu",
            # Offers of tools that Anthropic's server would run.
            "mcp_servers": [{"type": "url", "name": "s", "url": "http://x"}],
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "speed": "fast",
            "user_profile_id": "u",
            "workspace_id": "w",
        },
        refused={"compaction": {"type": "summarize"}, "thread": {"type": "create"}},
        beside={"tool_choice": TOOLS},
    ),
]

CHAT, COMPLETIONS, RESPONSES, MESSAGES = ENDPOINTS
