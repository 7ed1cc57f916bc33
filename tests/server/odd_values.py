"""Requests of every protocol with most of what they may hold, and one value in them made odd."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Path = tuple[str | int, ...]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
GRAMMAR = {"syntax": "lark", "definition": 'start: "x"'}
SAMPLING: dict[str, Any] = {
    "model": "m",
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 9,
    "min_p": 0.1,
    "seed": 7,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"97": 1},
    "min_tokens": 1,
    "stop": ["x", "yz"],
    "ignore_eos": False,
    "stream": True,
    "user": "u",
    "metadata": {"a": "b"},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SAMPLING,
        "max_completion_tokens": 4,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "reasoning_effort": "low",
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "chat_template_kwargs": {"enable_thinking": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "tools": [
            {"type": "function", "function": FUNCTION},
            {
                "type": "custom",
                "custom": {"name": "c", "format": {"type": "grammar", "grammar": GRAMMAR}},
            },
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
        },
        "parallel_tool_calls": False,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "name": "n", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Hm",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "2", "type": "custom", "custom": {"name": "c", "input": "x"}},
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "ok"},
        ],
    },
    "/v1/completions": {
        **SAMPLING,
        "prompt": ["Once", [104, 105]],
        "max_tokens": 4,
        "echo": True,
        "logprobs": 2,
        "n": 2,
        "best_of": 2,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "structured_outputs": {"regex": "[ab]+"},
    },
    "/v1/messages": {
        "model": "m",
        "max_tokens": 4,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 9,
        "stop_sequences": ["x"],
        "stream": True,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "tools": [
            {"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA},
            {"name": "g", "input_schema": SCHEMA, "defer_loading": True},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "metadata": {"user_id": "u"},
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hi"},
                    {"type": "document", "title": "t", "source": {"type": "text", "data": "x"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "s"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "1",
                        "is_error": True,
                        "content": [{"type": "tool_reference", "tool_name": "g"}],
                    },
                ],
            },
        ],
    },
    "/v1/responses": {
        **SAMPLING,
        "max_output_tokens": 4,
        "instructions": "s",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "store": True,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "tools": [
            {"type": "function", **FUNCTION},
            {"type": "custom", "name": "c", "format": {"type": "grammar", **GRAMMAR}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
            {"type": "tool_search", "execution": "client", "parameters": SCHEMA},
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "f"}],
        },
        "parallel_tool_calls": False,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "ok"},
            {"type": "tool_search_call", "call_id": "2", "arguments": {"q": "x"}},
            {"type": "tool_search_output", "call_id": "2", "tools": [{**FUNCTION, "type": "x"}]},
            {"type": "local_shell_call", "call_id": "3", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "3", "output": "ok"},
        ],
    },
    "/v1/messages/count_tokens": {
        "model": "m",
        "system": "s",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
    },
    "/tokenize": {"prompt": "Hi", "add_special_tokens": False, "return_token_strs": True},
    "/detokenize": {"tokens": [104, 105]},
}
ODD: tuple[object, ...] = (
    *(None, True, 0, -1, 1.5, 1e308, 10**30, -(10**30)),
    *("", "x", "\0", "\N{GRINNING FACE}", [], {}, [None], [[]], [{}], [0], ["x"], {"": {}}),
    *({"type": None}, {"type": "x"}, {"type": 5}, {"type": "object"}),
)
#: What Python's JSON cannot write: a word that stands for it, and how it is written.
UNWRITABLE: dict[str, str] = {
    "@nan": "NaN",
    "@infinity": "-Infinity",
    "@exponent": "1e999",
    "@digits": "1" * 5000,
    "@half": '"\\ud800"',
    "@other half": '"a\\udc00"',
    "@deep": "[" * 10_000 + "]" * 10_000,
    "@deep objects": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "@rather deep": "[" * 900 + "]" * 900,
    "@rather deep objects": '{"a":' * 300 + "1" + "}" * 300,
}


@dataclass(frozen=True, slots=True)
class OddRequest:
    """A right one, but for what stands at ``path``."""

    route: str
    path: Path
    value: object

    @property
    def body(self) -> bytes:
        text = json.dumps(_with(BODIES[self.route], self.path, self.value))
        if not self.is_json:
            text = text.replace(json.dumps(self.value), UNWRITABLE[str(self.value)])
        return text.encode()

    @property
    def where(self) -> str:
        """As errors spell it."""
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path]
        return "".join(steps).removeprefix(".")

    @property
    def is_json(self) -> bool:
        return not (isinstance(self.value, str) and self.value in UNWRITABLE)


def odd_requests() -> Iterator[OddRequest]:
    """All there are: thousands."""
    for route, body in BODIES.items():
        for path in _paths(body):
            for value in (*ODD, *UNWRITABLE):
                yield OddRequest(route, path, value)


def _paths(value: object, path: Path = ()) -> Iterator[Path]:
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, member in members:
        yield (*path, key)
        yield from _paths(member, (*path, key))


def _with(body: Any, path: Path, value: object) -> Any:  # noqa: ANN401 - JSON
    if not path:
        return value
    first, *rest = path
    copy: Any = dict(body) if isinstance(body, dict) else list(body)
    copy[first] = _with(body[first], tuple(rest), value)
    return copy
