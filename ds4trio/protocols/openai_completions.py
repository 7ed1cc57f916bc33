"""``POST /v1/completions``: raw prompts, continued as they stand.

Source: OpenAI's API reference (legacy completions), and what benchmarks built on it send.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from ds4trio.errors import Ds4TrioError
from ds4trio.protocols.fields import invalid, read, required, unsupported
from ds4trio.protocols.logprobs import MAX_TOP_LOGPROBS
from ds4trio.protocols.openai_answer import AnswerFrame, error_body
from ds4trio.protocols.openai_completions_writer import CompletionWriter
from ds4trio.protocols.openai_fields import (
    GenerationFields,
    answers,
    min_tokens,
    sampling,
)
from ds4trio.protocols.openai_format import output_format
from ds4trio.protocols.shared_fields import NonNegative, new_hex_id, stop_strings
from ds4trio.protocols.wire import ParsedRequest
from ds4trio.request import GenerationRequest, PromptBatch, TextPrompt, TokenPrompt

#: OpenAI's, of this endpoint only.
DEFAULT_MAX_TOKENS = 16
#: More than any engine has places for: millions took a core's time for most of a minute before
#: the engine refused them.
MAX_PROMPTS = 4096


class CompletionFields(GenerationFields, kw_only=True):
    # msgspec allows one array in a union; `_prompt` sorts out what may stand together.
    prompt: str | list[str | NonNegative | list[NonNegative]] | None = None
    #: 0 with ``echo``: only the prompt, for its logprobs.
    max_tokens: NonNegative | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    suffix: str | None = None


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
        if fields.suffix:
            raise unsupported("suffix", "this model cannot fill in before a given end")
        max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
        if max_tokens == 0 and not fields.echo:
            raise invalid("max_tokens", "0 leaves nothing to answer; it is for echo")
        generation = GenerationRequest(
            prompt=_prompt(fields),
            model=fields.model or None,
            sampling=sampling(fields),
            max_tokens=max_tokens,
            min_tokens=min_tokens(fields, max_tokens),
            stop=stop_strings(fields.stop),
            ignore_eos=bool(fields.ignore_eos),
            n=answers(fields),
            logprobs=fields.logprobs,
            echo=bool(fields.echo),
            usage_so_far=fields.usage_so_far,
            output_format=output_format(fields),
        )
        frame = AnswerFrame(
            id="cmpl-" + self.new_id(),
            created=int(self.now()),
            model=fields.model or served_model_name,
            include_usage=fields.include_usage,
        )
        return ParsedRequest(generation, bool(fields.stream), CompletionWriter(frame))

    def status(self, error: Ds4TrioError) -> int:
        return error.status

    def render_error(self, error: Ds4TrioError) -> bytes:
        return error_body(error, "prompt")


def _prompt(fields: CompletionFields) -> TextPrompt | TokenPrompt | PromptBatch:
    """A text, token ids, or a list of either."""
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
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"more than {MAX_PROMPTS} prompts")
    prompts = tuple(
        [_one(item, f"prompt[{i}]") for i, item in enumerate(prompt) if not isinstance(item, int)]
    )
    return PromptBatch(prompts) if len(prompts) > 1 else prompts[0]


def _one(prompt: str | list[int], at: str) -> TextPrompt | TokenPrompt:
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if not prompt:
        raise invalid(at, "a list of nothing")
    return TokenPrompt(tuple(prompt))
