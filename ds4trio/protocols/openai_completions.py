"""``POST /v1/completions``: a raw prompt, continued as it stands.

Source: OpenAI's API reference (legacy completions), and what benchmarks built on it send.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, assert_never

from ds4trio.errors import Ds4TrioError
from ds4trio.events import Finished, GenerationEvent, PromptProgress, TextDelta
from ds4trio.protocols.fields import invalid, read, required, unsupported
from ds4trio.protocols.openai_answer import (
    AnswerFrame,
    encode_json,
    error_body,
    failure,
    fold,
    new_hex_id,
)
from ds4trio.protocols.openai_fields import (
    UNSERVED,
    GenerationFields,
    NonNegative,
    min_tokens,
    refuse_unserved,
    sampling,
    stop_strings,
)
from ds4trio.protocols.wire import ParsedRequest, WireEvent
from ds4trio.request import GenerationRequest, TextPrompt, TokenPrompt

#: OpenAI's, of this endpoint only.
DEFAULT_MAX_TOKENS = 16

_KIND = "text_completion"


class CompletionFields(GenerationFields, kw_only=True):
    # msgspec allows one array in a union; `_prompt` sorts out what may stand together.
    prompt: str | list[str | NonNegative | list[NonNegative]] | None = None

    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


_UNSERVED_IN_COMPLETIONS: Mapping[str, object] = {
    **UNSERVED,
    "best_of": 1,
    "echo": False,
    "logprobs": None,
    "suffix": "",
}


@dataclass(frozen=True, slots=True)
class OpenAICompletions:
    """``now`` is in seconds since the epoch."""

    new_id: Callable[[], str] = new_hex_id
    now: Callable[[], float] = time.time

    name: ClassVar[str] = "completions"
    path: ClassVar[str] = "/v1/completions"

    def parse(self, body: bytes, served_model_name: str) -> ParsedRequest:
        """Raises: RequestError naming the field."""
        fields = read(body, CompletionFields)
        refuse_unserved(fields, _UNSERVED_IN_COMPLETIONS)
        max_tokens = fields.max_tokens or DEFAULT_MAX_TOKENS
        generation = GenerationRequest(
            prompt=_prompt(fields),
            model=fields.model or None,
            sampling=sampling(fields),
            max_tokens=max_tokens,
            min_tokens=min_tokens(fields, max_tokens),
            stop=stop_strings(fields),
            ignore_eos=bool(fields.ignore_eos),
        )
        frame = AnswerFrame(
            id="cmpl-" + self.new_id(),
            created=int(self.now()),
            model=fields.model or served_model_name,
            include_usage=fields.include_usage,
        )
        return ParsedRequest(generation, bool(fields.stream), CompletionWriter(frame))

    def render_error(self, error: Ds4TrioError) -> bytes:
        return error_body(error, "prompt")


class CompletionWriter:
    """A ``text_completion``, whole or in chunks of the same shape."""

    def __init__(self, frame: AnswerFrame) -> None:
        self._frame = frame
        self._text_head = frame.head(_KIND) + b'{"index":0,"text":'
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + frame.chunk_tail

    def start(self) -> Sequence[WireEvent]:
        return []

    def feed(self, events: Sequence[GenerationEvent]) -> Sequence[WireEvent]:
        out: list[WireEvent] = []
        for event in events:
            match event:
                case TextDelta(text):
                    out.append(WireEvent(self._text_head + encode_json(text) + self._text_tail))
                case Finished(reason, usage):
                    out.append(self._last_chunk(encode_json(reason)))
                    out += self._frame.ending(_KIND, usage)
                case PromptProgress():
                    pass
                case _:
                    assert_never(event)
        return out

    def heartbeat(self) -> None:
        """A comment serves: no client of this endpoint is known to count only data, and benchmarks
        count chunks as tokens."""

    def fail(self, error: Ds4TrioError) -> Sequence[WireEvent]:
        return failure(error, "prompt")

    def whole(self, events: Sequence[GenerationEvent]) -> bytes:
        text, finished = fold(events)
        choice = _choice(text, encode_json(finished.reason))
        return self._frame.body(_KIND, choice, finished.usage)

    def _last_chunk(self, finish_reason: bytes) -> WireEvent:
        choice = _choice(b'""', finish_reason)
        return WireEvent(self._frame.head(_KIND) + choice + self._frame.chunk_tail)


def _choice(text: bytes, finish_reason: bytes) -> bytes:
    return b'{"index":0,"text":%b,"logprobs":null,"finish_reason":%b}' % (text, finish_reason)


def _prompt(fields: CompletionFields) -> TextPrompt | TokenPrompt:
    """A text, token ids, or a list of one of either."""
    prompt = required(fields.prompt, "prompt")
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if not prompt:
        raise invalid("prompt", "a list of nothing")
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return TokenPrompt(tuple(token_ids))
    if token_ids:
        raise invalid("prompt", "token ids and prompts in one list")
    if len(prompt) > 1:
        raise unsupported("prompt", "several prompts in one request are not supported")
    only = prompt[0]
    if isinstance(only, str):
        return TextPrompt(only)
    assert not isinstance(only, int)
    if not only:
        raise invalid("prompt[0]", "a list of nothing")
    return TokenPrompt(tuple(only))
