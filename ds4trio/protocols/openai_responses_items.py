"""The output items of a Responses answer, each with the events of its own life.

An item is added, says its pieces, and is done. It knows its words, not its place: the writer adds
``sequence_number``, and tells the items when to begin and end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import msgspec

from ds4trio.protocols.logprobs import chat_tokens
from ds4trio.protocols.openai_responses_input import item_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.events import TokenLogprob
    from ds4trio.protocols.openai_responses_tools import CallKind, CallName

Status = Literal["in_progress", "completed", "incomplete"]
#: An event's type and its own fields.
Event: TypeAlias = tuple[str, dict[str, object]]


class OutputItem(ABC):
    """``output_index`` is its place in the response's ``output``."""

    type: ClassVar[str]

    def __init__(self, output_index: int, new_id: str) -> None:
        self.output_index = output_index
        self.id = f"{item_prefix(self.type)}_{new_id}"
        self.status: Status = "in_progress"
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All that was said in it so far."""
        return "".join(self._pieces)

    @abstractmethod
    def opening(self) -> list[Event]:
        """Its events between ``output_item.added`` and the first piece."""

    def piece(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """More of it; ``logprobs`` are those of the tokens it was made of."""
        self._pieces.append(text)
        return [self._delta(text)]

    @abstractmethod
    def closing(self) -> list[Event]:
        """Its events between the last piece and ``output_item.done``."""

    @abstractmethod
    def snapshot(self) -> dict[str, object]:
        """The item as it stands."""

    def _delta(self, text: str) -> Event:
        raise NotImplementedError

    def _event(self, name: str, /, **fields: object) -> Event:
        place = {"item_id": self.id, "output_index": self.output_index}
        return f"response.{name}", {**place, **fields}


class MessageItem(OutputItem):
    """What the model says, as one part of text."""

    type = "message"

    def __init__(self, output_index: int, new_id: str) -> None:
        super().__init__(output_index, new_id)
        self._logprobs: list[dict[str, object]] = []
        self._begun = False

    def opening(self) -> list[Event]:
        self._begun = True
        return [self._event("content_part.added", content_index=0, part=self._empty_part())]

    def piece(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        said = chat_tokens(logprobs)
        self._logprobs += said
        self._pieces.append(text)
        return [self._event("output_text.delta", content_index=0, delta=text, logprobs=said)]

    def closing(self) -> list[Event]:
        text = self.text
        return [
            self._event("output_text.done", content_index=0, text=text, logprobs=self._logprobs),
            self._event("content_part.done", content_index=0, part=self._part()),
        ]

    def snapshot(self) -> dict[str, object]:
        return {
            "id": self.id,
            "type": self.type,
            "status": self.status,
            "role": "assistant",
            "content": [self._part()] if self._begun else [],
        }

    def _part(self) -> dict[str, object]:
        return {**self._empty_part(), "text": self.text, "logprobs": self._logprobs}

    def _empty_part(self) -> dict[str, object]:
        return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


class ReasoningItem(OutputItem):
    """What the model thinks, as it thinks it."""

    type = "reasoning"

    def opening(self) -> list[Event]:
        part = {"type": "reasoning_text", "text": ""}
        return [self._event("content_part.added", content_index=0, part=part)]

    def closing(self) -> list[Event]:
        part = {"type": "reasoning_text", "text": self.text}
        return [
            self._event("reasoning_text.done", content_index=0, text=self.text),
            self._event("content_part.done", content_index=0, part=part),
        ]

    def snapshot(self) -> dict[str, object]:
        content = [{"type": "reasoning_text", "text": self.text}] if self._pieces else []
        return {**_reasoning(self), "summary": [], "content": content}

    def _delta(self, text: str) -> Event:
        return self._event("reasoning_text.delta", content_index=0, delta=text)


class SummaryItem(OutputItem):
    """What the model thinks, where a summary was asked for.

    Nothing here can summarise, so the summary is the thoughts themselves: clients show summaries,
    and hide reasoning text or do not know it.
    """

    type = "reasoning"

    def opening(self) -> list[Event]:
        part = {"type": "summary_text", "text": ""}
        return [self._event("reasoning_summary_part.added", summary_index=0, part=part)]

    def closing(self) -> list[Event]:
        part = {"type": "summary_text", "text": self.text}
        return [
            self._event("reasoning_summary_text.done", summary_index=0, text=self.text),
            self._event("reasoning_summary_part.done", summary_index=0, part=part),
        ]

    def snapshot(self) -> dict[str, object]:
        summary = [{"type": "summary_text", "text": self.text}] if self._pieces else []
        return {**_reasoning(self), "summary": summary}

    def _delta(self, text: str) -> Event:
        return self._event("reasoning_summary_text.delta", summary_index=0, delta=text)


class CallItem(OutputItem):
    """A call; its pieces are the arguments."""

    def __init__(self, output_index: int, new_id: str, call_id: str, name: CallName) -> None:
        super().__init__(output_index, new_id)
        self._call_id = call_id
        self._name = name

    def opening(self) -> list[Event]:
        return []

    def _named(self) -> dict[str, object]:
        """What all calls say of themselves."""
        named: dict[str, object] = {
            "id": self.id,
            "type": self.type,
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name.name,
        }
        if self._name.namespace is not None:
            named["namespace"] = self._name.namespace
        return named


class FunctionCallItem(CallItem):
    type = "function_call"

    def closing(self) -> list[Event]:
        done = "function_call_arguments.done"
        return [self._event(done, arguments=self.text, name=self._name.name)]

    def snapshot(self) -> dict[str, object]:
        return {**self._named(), "arguments": self.text}

    def _delta(self, text: str) -> Event:
        return self._event("function_call_arguments.delta", delta=text)


class CustomCallItem(CallItem):
    type = "custom_tool_call"

    def closing(self) -> list[Event]:
        return [self._event("custom_tool_call_input.done", input=self.text)]

    def snapshot(self) -> dict[str, object]:
        return {**self._named(), "input": self.text}

    def _delta(self, text: str) -> Event:
        return self._event("custom_tool_call_input.delta", delta=text)


class ToolSearchItem(CallItem):
    """Its arguments are an object, so they are said once and whole."""

    type = "tool_search_call"

    def piece(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self._pieces.append(text)
        return []

    def closing(self) -> list[Event]:
        return []

    def snapshot(self) -> dict[str, object]:
        return {
            "id": self.id,
            "type": self.type,
            "status": self.status,
            "call_id": self._call_id,
            "execution": "client",
            "arguments": _json_or_empty(self.text),
        }


def call_item(output_index: int, new_id: str, call_id: str, name: CallName) -> CallItem:
    """The item that a call of this tool is."""
    kinds: dict[CallKind, type[FunctionCallItem | CustomCallItem | ToolSearchItem]] = {
        "function": FunctionCallItem,
        "custom": CustomCallItem,
        "tool_search": ToolSearchItem,
    }
    return kinds[name.kind](output_index, new_id, call_id, name)


def _reasoning(item: OutputItem) -> dict[str, object]:
    return {"id": item.id, "type": item.type, "status": item.status, "encrypted_content": None}


def _json_or_empty(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
