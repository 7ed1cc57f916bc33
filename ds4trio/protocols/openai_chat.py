"""``POST /v1/chat/completions``.

Source: OpenAI's API reference, and what its official clients and agents built on them insist on.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from ds4trio.errors import Ds4TrioError
from ds4trio.protocols.fields import invalid, read, unsupported
from ds4trio.protocols.logprobs import MAX_TOP_LOGPROBS
from ds4trio.protocols.openai_answer import AnswerFrame, error_body
from ds4trio.protocols.openai_chat_messages import ChatMessage, messages
from ds4trio.protocols.openai_chat_tools import ToolFields, tools
from ds4trio.protocols.openai_chat_writer import ChatWriter
from ds4trio.protocols.openai_fields import (
    answers,
    min_tokens,
    sampling,
)
from ds4trio.protocols.openai_format import output_format
from ds4trio.protocols.openai_thinking import thinking
from ds4trio.protocols.shared_fields import Positive, new_hex_id, stop_strings
from ds4trio.protocols.wire import ParsedRequest
from ds4trio.request import Conversation, GenerationRequest


class ChatFields(ToolFields, kw_only=True):
    """(Structs inherit from one: tools on top of thinking, on top of what completions have.)"""

    messages: list[ChatMessage] | None = None
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    #: Declared to be refused by name: they would change the answer.
    modalities: list[str] | None = None
    audio: object = None
    web_search_options: object = None
    moderation: object = None


@dataclass(frozen=True, slots=True)
class OpenAIChat:
    """``now`` is in seconds since the epoch."""

    new_id: Callable[[], str] = new_hex_id
    now: Callable[[], float] = time.time

    name: ClassVar[str] = "chat"
    path: ClassVar[str] = "/v1/chat/completions"

    def parse(self, body: bytes, served_model_name: str) -> ParsedRequest:
        """Raises: RequestError naming the field."""
        fields = read(body, ChatFields)
        _refuse_unserved(fields)
        generation = _generation(fields)
        frame = AnswerFrame(
            id="chatcmpl-" + self.new_id(),
            created=int(self.now()),
            model=fields.model or served_model_name,
            include_usage=fields.include_usage,
        )
        return ParsedRequest(generation, bool(fields.stream), ChatWriter(frame, generation))

    def status(self, error: Ds4TrioError) -> int:
        return error.status

    def render_error(self, error: Ds4TrioError) -> bytes:
        return error_body(error, "messages")


def _generation(fields: ChatFields) -> GenerationRequest:
    max_tokens = fields.max_completion_tokens or fields.max_tokens
    offered, choice = tools(fields)
    return GenerationRequest(
        prompt=Conversation(messages(fields.messages)),
        model=fields.model or None,
        sampling=sampling(fields),
        max_tokens=max_tokens,
        min_tokens=min_tokens(fields, max_tokens),
        stop=stop_strings(fields.stop),
        ignore_eos=bool(fields.ignore_eos),
        n=answers(fields),
        logprobs=_logprobs(fields),
        usage_so_far=fields.usage_so_far,
        tools=offered,
        tool_choice=choice,
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        output_format=output_format(fields),
        thinking=thinking(fields),
    )


def _logprobs(fields: ChatFields) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise invalid("top_logprobs", "needs logprobs to be true")
    return None


def _refuse_unserved(fields: ChatFields) -> None:
    if fields.modalities not in (None, [], ["text"]):
        raise unsupported("modalities", "this model answers only in text")
    if fields.audio is not None:
        raise unsupported("audio", "this model answers only in text")
    if fields.web_search_options is not None:
        raise unsupported("web_search_options")
    if fields.moderation is not None:
        raise unsupported("moderation", "this server judges no contents")
