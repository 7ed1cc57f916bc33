"""``POST /v1/messages``, and ``/v1/messages/count_tokens`` of the same body.

Source: Anthropic's API reference, and what its official clients and Claude Code insist on.

What cannot change an answer (``metadata``, ``cache_control``, ``context_management``,
``service_tier``, ...) is not declared, and so ignored. Of ``thinking``, so is ``display``: thoughts
are sent in full, since only what a client has can come back to the model.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from ds4trio.errors import Ds4TrioError
from ds4trio.protocols import anthropic_errors
from ds4trio.protocols.anthropic_content import Content, Conversant, Turn
from ds4trio.protocols.anthropic_tools import (
    AnthropicTool,
    ToolChoiceFields,
    known_tools,
    tools,
)
from ds4trio.protocols.anthropic_writer import MessageWriter
from ds4trio.protocols.fields import invalid, read, required, unsupported
from ds4trio.protocols.shared_fields import (
    THINKING_SWITCHES,
    Positive,
    Temperature,
    TopK,
    TopP,
    new_hex_id,
    stop_strings,
)
from ds4trio.protocols.wire import ParsedRequest
from ds4trio.request import (
    Conversation,
    Effort,
    GenerationRequest,
    JsonSchema,
    SamplingParams,
    Thinking,
)


class ThinkingFields(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"] | None = None
    budget_tokens: Positive | None = None


class FormatFields(msgspec.Struct):
    type: str | None = None
    schema: dict[str, object] | None = None


class OutputConfig(msgspec.Struct):
    effort: Effort | None = None
    format: FormatFields | None = None


class MessageFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    messages: list[Turn] | None = None
    system: Content = None
    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoiceFields | None = None
    thinking: ThinkingFields | None = None
    output_config: OutputConfig | None = None
    #: What ``output_config.format`` was called before.
    output_format: FormatFields | None = None

    #: Declared to be refused by name: the answer would be another, or need what is kept elsewhere.
    compaction: object = None
    thread: object = None


@dataclass(frozen=True, slots=True)
class AnthropicMessages:
    new_id: Callable[[], str] = new_hex_id

    name: ClassVar[str] = "messages"
    path: ClassVar[str] = "/v1/messages"
    count_path: ClassVar[str] = "/v1/messages/count_tokens"

    def parse(self, body: bytes, served_model_name: str) -> ParsedRequest:
        """Raises: RequestError naming the field."""
        fields = read(body, MessageFields)
        _refuse_unserved(fields)
        writer = MessageWriter("msg_" + self.new_id(), fields.model or served_model_name)
        return ParsedRequest(_generation(fields), bool(fields.stream), writer)

    def status(self, error: Ds4TrioError) -> int:
        return anthropic_errors.status(error)

    def render_error(self, error: Ds4TrioError) -> bytes:
        return anthropic_errors.error_body(error)

    def parse_count_tokens(self, body: bytes) -> GenerationRequest:
        """The request whose prompt is to be counted, not answered. Raises: RequestError."""
        return _generation(read(body, MessageFields))

    def render_count_tokens(self, prompt_tokens: int) -> bytes:
        return msgspec.json.encode({"input_tokens": prompt_tokens})


def _generation(fields: MessageFields) -> GenerationRequest:
    known = known_tools(fields.tools)
    listed, choice = tools(fields.tools, known, fields.tool_choice)
    one_call = fields.tool_choice is not None and fields.tool_choice.disable_parallel_tool_use
    return GenerationRequest(
        prompt=Conversation(Conversant(known).messages(fields.system, fields.messages)),
        model=fields.model or None,
        sampling=SamplingParams(
            temperature=1.0 if fields.temperature is None else fields.temperature,
            top_p=1.0 if fields.top_p is None else fields.top_p,
            top_k=max(fields.top_k or 0, 0),
        ),
        max_tokens=fields.max_tokens,
        stop=stop_strings(fields.stop_sequences, "stop_sequences"),
        tools=listed,
        tool_choice=choice,
        parallel_tool_calls=not one_call,
        output_format=_output_format(fields),
        thinking=_thinking(fields),
    )


def _refuse_unserved(fields: MessageFields) -> None:
    if fields.compaction is not None:
        raise unsupported("compaction", "this server does not summarize conversations")
    if fields.thread is not None:
        raise unsupported("thread", "this server keeps no conversations; send all messages")


def _thinking(fields: MessageFields) -> Thinking:
    """``adaptive`` leaves it to the model, and so does silence. An effort is one of answering, too,
    and does not switch thinking on."""
    asked = fields.thinking or ThinkingFields()
    effort = None if fields.output_config is None else fields.output_config.effort
    enabled = False if effort == "none" else THINKING_SWITCHES.get(asked.type)
    return Thinking(enabled, effort, None if enabled is False else asked.budget_tokens)


def _output_format(fields: MessageFields) -> JsonSchema | None:
    at, asked = "output_format", fields.output_format
    if fields.output_config is not None and fields.output_config.format is not None:
        if asked is not None:
            raise invalid(at, "cannot be combined with output_config.format")
        at, asked = "output_config.format", fields.output_config.format
    if asked is None:
        return None
    if asked.type != "json_schema":
        raise unsupported(f"{at}.type", "not json_schema")
    return JsonSchema(required(asked.schema, f"{at}.schema"), param=f"{at}.schema")
