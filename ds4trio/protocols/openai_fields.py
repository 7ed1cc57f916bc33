"""What OpenAI's two generation endpoints ask in the same words.

What cannot change an answer (``user``, ``metadata``, ``store``, ...) is not declared, and so
ignored. ``top_k``, ``min_p``, ``min_tokens``, ``ignore_eos`` and the like are the common extensions
of open servers, spelled as vLLM spells them.
"""

# No deferred annotations: msgspec reads these at run time.
from typing import Annotated

import msgspec
from msgspec import Meta

from ds4trio.protocols.fields import invalid, unsupported
from ds4trio.protocols.openai_format import ResponseFormat, StructuredOutputs
from ds4trio.protocols.shared_fields import NonNegative, Positive, Temperature, TopK, TopP
from ds4trio.request import SamplingParams

#: Answers to one prompt; OpenAI's own bound.
MAX_ANSWERS = 128

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


class StreamOptions(msgspec.Struct):
    """``continuous_usage_stats`` (vLLM's) asks for usage in each chunk, and so for the last one."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """Fields of both endpoints, in OpenAI's units and ranges."""

    model: str | None = None
    max_tokens: Positive | None = None
    min_tokens: NonNegative | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Int64 | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[NonNegative, Bias] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None
    best_of: Positive | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, object] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    #: Declared to be refused by name: it would change the answer.
    stop_token_ids: list[int] | None = None

    @property
    def include_usage(self) -> bool:
        asked = self.stream_options
        return asked is not None and bool(asked.include_usage or asked.continuous_usage_stats)

    @property
    def usage_so_far(self) -> bool:
        """Whether each chunk of a stream is to say it."""
        asked = self.stream_options
        return bool(self.stream and asked is not None and asked.continuous_usage_stats)


def sampling(fields: GenerationFields) -> SamplingParams:
    """How tokens are chosen, with OpenAI's defaults (sampling, not greedy)."""
    if fields.stop_token_ids:
        raise unsupported("stop_token_ids")
    return SamplingParams(
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=max(fields.top_k or 0, 0),
        min_p=fields.min_p or 0.0,
        seed=fields.seed,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=fields.repetition_penalty or 1.0,
        logit_bias=fields.logit_bias or {},
    )


def answers(fields: GenerationFields) -> int:
    """How many answers to give. Raises: RequestError."""
    n = fields.n or 1
    if fields.best_of not in (None, n):
        raise unsupported("best_of", f"choosing the best of several is not supported; n is {n}")
    return n


def min_tokens(fields: GenerationFields, max_tokens: int | None) -> int:
    """Raises: RequestError."""
    least = fields.min_tokens or 0
    if max_tokens is not None and least > max_tokens:
        raise invalid("min_tokens", f"{least} is more than the at most {max_tokens} asked for")
    return least
