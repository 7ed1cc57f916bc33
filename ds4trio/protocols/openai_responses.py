"""``POST /v1/responses``.

Source: OpenAI's API reference and the types of its official clients; what Codex and other agents
send and insist on.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from ds4trio.errors import Ds4TrioError
from ds4trio.protocols.fields import invalid, read, required, to_text, unsupported
from ds4trio.protocols.logprobs import MAX_TOP_LOGPROBS
from ds4trio.protocols.openai_answer import error_body
from ds4trio.protocols.openai_fields import answers, min_tokens, sampling
from ds4trio.protocols.openai_format import output_format
from ds4trio.protocols.openai_responses_input import ItemReader, is_reference, stored_form
from ds4trio.protocols.openai_responses_tools import Json, ToolTable, echoed, read_tool_choice
from ds4trio.protocols.openai_responses_writer import ResponseFrame, ResponsesWriter
from ds4trio.protocols.openai_thinking import Reasoning, ThinkingFields, thinking
from ds4trio.protocols.shared_fields import Positive, new_hex_id, stop_strings
from ds4trio.protocols.wire import Continuation, ParsedRequest
from ds4trio.request import (
    Conversation,
    GenerationRequest,
    JsonSchema,
    Message,
    NamedTool,
    OutputFormat,
)

_LOGPROBS = "message.output_text.logprobs"


class TextFormat(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextFields(msgspec.Struct):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningFields(Reasoning):
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesFields(ThinkingFields, kw_only=True):
    """``stop``, ``seed``, penalties, ``thinking_budget`` and the like are extensions, as in the
    other endpoints."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None  # the same, and of what a response shows of it
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    #: Declared to be refused by name: they bring in text that is kept elsewhere, or a judge.
    conversation: Any = None
    prompt: Any = None
    moderation: Any = None


@dataclass(frozen=True, slots=True)
class OpenAIResponses:
    """``now`` is in seconds since the epoch."""

    new_id: Callable[[], str] = new_hex_id
    now: Callable[[], float] = time.time

    name: ClassVar[str] = "responses"
    path: ClassVar[str] = "/v1/responses"

    def parse(self, body: bytes, served_model_name: str) -> ParsedRequest:
        """Raises: RequestError naming the field."""
        fields = read(body, ResponsesFields)
        _refuse(fields)
        asked = _Asked(
            protocol=self,
            fields=fields,
            model=fields.model or served_model_name,
            items=_items(fields.input),
            response_id="resp_" + self.new_id(),
            created=int(self.now()),
        )
        return asked.resume((), None)

    def status(self, error: Ds4TrioError) -> int:
        return error.status

    def render_error(self, error: Ds4TrioError) -> bytes:
        return error_body(error, "input")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, to be made sense of once what it refers to is known."""

    protocol: OpenAIResponses
    fields: ResponsesFields
    model: str
    items: Sequence[Json]
    response_id: str
    created: int

    def resume(self, history: Sequence[Json], items: Mapping[str, Json] | None) -> ParsedRequest:
        """Raises: RequestError."""
        fields = self.fields
        table = ToolTable()
        table.declare(fields.tools or [], "tools")
        own, references = self._own_items(items)
        reader = ItemReader(table)
        if fields.instructions:
            reader.add(Message("system", fields.instructions))
        reader.read(history, "previous_response_id")
        reader.read(own, "input")
        messages = reader.messages()
        # What is still to be resolved may be all there is.
        if not messages and not references and fields.previous_response_id is None:
            raise invalid("input", "there is nothing to answer")
        generation = _generation(fields, messages, table)
        frame = ResponseFrame(
            id=self.response_id,
            created=self.created,
            model=self.model,
            echo=_echo(fields),
            summarised=_wants_summary(fields.reasoning),
            background=bool(fields.background),
        )
        store = fields.store is not False
        writer = ResponsesWriter(frame, table, self.protocol.new_id, self.protocol.now)
        continuation = Continuation(
            answer=writer,
            items=tuple(stored_form(item, self.protocol.new_id) for item in own) if store else (),
            previous_id=fields.previous_response_id,
            references=references,
            store=store,
            background=bool(fields.background),
            resume=self.resume,
        )
        return ParsedRequest(generation, bool(fields.stream), writer, continuation)

    def _own_items(
        self, found: Mapping[str, Json] | None
    ) -> tuple[Sequence[Json], tuple[str, ...]]:
        """The request's items, references replaced by what they name, and their ids.

        ``found`` None: nothing was looked for yet.
        """
        own: list[Json] = []
        references: list[str] = []
        for i, item in enumerate(self.items):
            if not is_reference(item):
                own.append(item)
                continue
            item_id = item.get("id")
            if not isinstance(item_id, str):
                raise invalid(f"input[{i}].id", "required, but missing or no string")
            references.append(item_id)
            if found is not None:
                own.append(found[item_id])
        return own, tuple(references)


def _refuse(fields: ResponsesFields) -> None:
    if fields.conversation is not None:
        raise unsupported("conversation", "not supported: use previous_response_id, or send input")
    if fields.prompt is not None:
        raise unsupported("prompt", "this server keeps no prompt templates")
    if fields.moderation is not None:
        raise unsupported("moderation", "this server judges no contents")
    if fields.n not in (None, 1):
        raise unsupported("n", "a response is one answer")
    answers(fields)
    if fields.background and fields.store is False:
        raise invalid("background", "needs store: a background response is fetched when it is done")


def _items(asked: str | list[dict[str, Any]] | None) -> Sequence[Json]:
    if asked is None:
        return []
    if isinstance(asked, str):
        return [{"type": "message", "role": "user", "content": asked}]
    return asked


def _generation(
    fields: ResponsesFields, messages: tuple[Message, ...], table: ToolTable
) -> GenerationRequest:
    choice = read_tool_choice(fields.tool_choice, table)
    forced = choice == "required" or isinstance(choice, NamedTool)
    max_tokens = fields.max_output_tokens or fields.max_tokens
    wants_logprobs = fields.top_logprobs or _LOGPROBS in (fields.include or ())
    return GenerationRequest(
        prompt=Conversation(messages),
        model=fields.model or None,
        sampling=sampling(fields),
        max_tokens=max_tokens,
        min_tokens=min_tokens(fields, max_tokens),
        stop=stop_strings(fields.stop),
        ignore_eos=bool(fields.ignore_eos),
        logprobs=fields.top_logprobs or 0 if wants_logprobs else None,
        tools=table.offered,
        tool_choice=choice,
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        # An answer that must be a call has no text that could have a format.
        output_format=None if forced else _format(fields),
        thinking=thinking(fields),
    )


def _format(fields: ResponsesFields) -> OutputFormat | None:
    format_ = fields.text.format if fields.text is not None else None
    match format_.type if format_ is not None else None:
        case None | "text":
            return output_format(fields)
        case "json_object":
            return JsonSchema({})
        case "json_schema":
            assert format_ is not None
            schema = required(format_.schema, "text.format.schema")
            return JsonSchema(schema, format_.name, format_.description, param="text.format.schema")
        case other:
            words = f"{other!r} is not one of text, json_object, json_schema"
            raise unsupported("text.format.type", words)


def _wants_summary(reasoning: ReasoningFields | None) -> bool:
    if reasoning is None:
        return False
    return (reasoning.summary or reasoning.generate_summary) not in (None, "none")


def _echo(fields: ResponsesFields) -> Mapping[str, object]:
    """What a response repeats of its request, with the defaults that took effect."""
    text, reasoning = fields.text or TextFields(), fields.reasoning or ReasoningFields()
    return {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens or fields.max_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": fields.safety_identifier,
        "service_tier": "default",
        "store": fields.store is not False,
        "temperature": 1.0 if fields.temperature is None else fields.temperature,
        "text": _raw(
            {"format": _echoed_format(text.format), "verbosity": text.verbosity or "medium"}, "text"
        ),
        "tool_choice": _raw(fields.tool_choice or "auto", "tool_choice"),
        "tools": _raw(echoed(fields.tools or []), "tools"),
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": 1.0 if fields.top_p is None else fields.top_p,
        # What does not fit the context is refused, never cut.
        "truncation": "disabled",
        "user": fields.user,
    }


def _echoed_format(format_: TextFormat | None) -> dict[str, object]:
    if format_ is None or format_.type != "json_schema":
        return {"type": (format_ and format_.type) or "text"}
    return msgspec.structs.asdict(format_)


def _raw(value: object, param: str) -> msgspec.Raw:
    """Encoded once, for the several times that a stream repeats it."""
    return msgspec.Raw(to_text(value, param).encode())
