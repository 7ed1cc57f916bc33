"""What OpenAI's two generation endpoints ask in the same words.

A field that this server does not serve yet is declared only to be refused by name where it would
change the answer; what cannot change it (``user``, ``metadata``, ``store``, ...) is not declared,
and so ignored. ``top_k``, ``min_p``, ``min_tokens``, ``ignore_eos`` and the like are the common
extensions of open servers, spelled as vLLM spells them.
"""

# No deferred annotations: msgspec reads these at run time.
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from ds4trio.protocols.fields import invalid, unsupported
from ds4trio.request import SamplingParams

#: OpenAI allows 4; open servers more. Each one is searched for in every piece of text.
MAX_STOP_STRINGS = 16

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct):
    """``continuous_usage_stats`` has no effect: events carry no counts before the last one."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """Fields of both endpoints, in OpenAI's units and ranges."""

    model: str | None = None
    max_tokens: Positive | None = None
    min_tokens: NonNegative | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: Positive | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[str, float] | None = None
    stop_token_ids: list[int] | None = None
    structured_outputs: object = None
    guided_json: object = None
    guided_regex: object = None
    guided_choice: object = None
    guided_grammar: object = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


#: Fields not served yet, and the value with which each leaves the answer as it is (None: no value).
UNSERVED: Mapping[str, object] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "stop_token_ids": [],
    "structured_outputs": None,
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
}


def refuse_unserved(fields: msgspec.Struct, unserved: Mapping[str, object]) -> None:
    """Raises: RequestError for a field that would change the answer, if only we served it."""
    for name, neutral in unserved.items():
        value = getattr(fields, name)
        if value is not None and value != neutral:
            raise unsupported(name)


def sampling(fields: GenerationFields) -> SamplingParams:
    """How tokens are chosen, with OpenAI's defaults (sampling, not greedy)."""
    return SamplingParams(
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        # vLLM's "all tokens" is -1, llama.cpp's is 0.
        top_k=max(fields.top_k or 0, 0),
        min_p=fields.min_p or 0.0,
        seed=fields.seed,
    )


def stop_strings(fields: GenerationFields) -> tuple[str, ...]:
    """Raises: RequestError."""
    if isinstance(fields.stop, str):
        if not fields.stop:
            raise invalid("stop", "an empty string would stop every answer")
        return (fields.stop,)
    stop = tuple(fields.stop or ())
    if len(stop) > MAX_STOP_STRINGS:
        raise invalid("stop", f"more than {MAX_STOP_STRINGS} strings")
    if "" in stop:
        raise invalid(f"stop[{stop.index('')}]", "an empty string would stop every answer")
    return stop


def min_tokens(fields: GenerationFields, max_tokens: int | None) -> int:
    """Raises: RequestError."""
    least = fields.min_tokens or 0
    if max_tokens is not None and least > max_tokens:
        raise invalid("min_tokens", f"{least} is more than the at most {max_tokens} asked for")
    return least
