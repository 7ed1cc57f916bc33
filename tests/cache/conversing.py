"""A client that talks to a service in each protocol, as clients do: it sends the whole conversation
every time, its calls' arguments in its own JSON, and what it likes of the model's thoughts.

Written from the protocols' references.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from ds4trio.engine.fair_queue import Share
from ds4trio.protocols.table import PROTOCOLS

if TYPE_CHECKING:
    from ds4trio.service import Service

Json = dict[str, Any]
PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


class Talk:
    """One conversation. ``items`` are its messages, as the protocol has them."""

    path: ClassVar[str]

    def __init__(self, service: Service, system: str, owner: str | None = None) -> None:
        self.service = service
        self.system = system
        self.owner = owner
        self.items: list[Json] = []
        self.settings: Json = {}
        #: Of the last answer: prompt tokens, and how many of them were cached.
        self.usage = (0, 0)

    async def ask(self) -> Json:
        """The answer to what was said so far, of which nothing is added to it."""
        parsed = PROTOCOLS[self.path].parse(json.dumps(self.fields() | self.settings).encode(), "m")
        async with self.service.generate(parsed.generation, Share(self.owner)) as reply:
            events = [event async for event in reply]
        body: Json = json.loads(parsed.writer.whole(events))
        self.usage = self.read_usage(body["usage"])
        return body

    def fields(self) -> Json:
        raise NotImplementedError

    def read_usage(self, usage: Json) -> tuple[int, int]:
        raise NotImplementedError

    def say(self, text: str) -> None:
        self.items.append({"role": "user", "content": text})

    def take(self, body: Json, *, thoughts: bool) -> list[Json]:
        """Add the answer, in the client's own words. Returns its calls: id, name, arguments."""
        raise NotImplementedError

    def result(self, call: Json, text: str) -> None:
        raise NotImplementedError


def own_json(text: str) -> str:
    """The same JSON, its keys in another order and its spaces gone."""
    return json.dumps(dict(reversed(json.loads(text).items())), separators=(",", ":"))


class ChatTalk(Talk):
    path = "/v1/chat/completions"

    def fields(self) -> Json:
        function = {"name": "get_weather", "parameters": PARAMETERS}
        tools = [{"type": "function", "function": function}]
        return {
            "messages": [{"role": "system", "content": self.system}, *self.items],
            "tools": tools,
        }

    def read_usage(self, usage: Json) -> tuple[int, int]:
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def take(self, body: Json, *, thoughts: bool) -> list[Json]:
        message = body["choices"][0]["message"]
        calls = [
            {
                "id": call["id"],
                **call["function"],
                "arguments": own_json(call["function"]["arguments"]),
            }
            for call in message.get("tool_calls") or ()
        ]
        sent: Json = {"role": "assistant", "content": message["content"]}
        if calls:
            sent["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls
            ]
        if thoughts:
            sent["reasoning_content"] = message.get("reasoning_content")
        self.items.append(sent)
        return calls

    def result(self, call: Json, text: str) -> None:
        self.items.append({"role": "tool", "tool_call_id": call["id"], "content": text})


class MessagesTalk(Talk):
    path = "/v1/messages"

    def fields(self) -> Json:
        tool = {"name": "get_weather", "input_schema": PARAMETERS}
        thinking = {"type": "enabled", "budget_tokens": 1024}
        return {
            "model": "m",
            "max_tokens": 2048,
            "system": self.system,
            "messages": self.items,
            "tools": [tool],
            "thinking": thinking,
        }

    def read_usage(self, usage: Json) -> tuple[int, int]:
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached

    def take(self, body: Json, *, thoughts: bool) -> list[Json]:
        kept = [b for b in body["content"] if thoughts or b["type"] != "thinking"]
        for block in kept:
            if block["type"] == "tool_use":
                block["input"] = dict(reversed(block["input"].items()))
        self.items.append({"role": "assistant", "content": kept})
        return [
            {"id": b["id"], "name": b["name"], "arguments": json.dumps(b["input"])}
            for b in kept
            if b["type"] == "tool_use"
        ]

    def result(self, call: Json, text: str) -> None:
        block = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        self.items.append({"role": "user", "content": [block]})


class ResponsesTalk(Talk):
    path = "/v1/responses"

    def fields(self) -> Json:
        tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
        return {
            "instructions": self.system,
            "input": self.items,
            "tools": [{**tool, "strict": False}],
            "store": False,
        }

    def read_usage(self, usage: Json) -> tuple[int, int]:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]

    def take(self, body: Json, *, thoughts: bool) -> list[Json]:
        kept = [item for item in body["output"] if thoughts or item["type"] != "reasoning"]
        calls = [item for item in kept if item["type"] == "function_call"]
        for call in calls:
            call["arguments"] = own_json(call["arguments"])
        self.items += kept
        return [{"id": c["call_id"], "name": c["name"], "arguments": c["arguments"]} for c in calls]

    def result(self, call: Json, text: str) -> None:
        item = {"type": "function_call_output", "call_id": call["id"], "output": text}
        self.items.append(item)


TALKS: list[type[Talk]] = [ChatTalk, MessagesTalk, ResponsesTalk]
