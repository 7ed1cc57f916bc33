"""Whether a request can be served at all, whoever else is there."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ds4trio.engine.messages import Job
from ds4trio.errors import ContextOverflowError, RequestError

if TYPE_CHECKING:
    from ds4trio.engine.job import EngineRequest

#: Far more than anybody uses, and what no logit is made infinite by: torch refuses to store numbers
#: outside float32, which would end the worker.
REPETITION_PENALTY = (1e-3, 1e3)


def new_job(request: EngineRequest, context_tokens: int, vocab_size: int) -> Job:
    """The job for a request; ``max_tokens`` beyond the context is cut to what fits.

    Raises: RequestError, ContextOverflowError.
    """
    prompt = tuple(request.token_ids)
    if not prompt:
        raise RequestError("The prompt is empty.", param="prompt")
    wants_no_token = request.max_tokens == 0 and request.prompt_logprobs
    room = context_tokens - len(prompt)
    if room < (0 if wants_no_token else 1):
        raise ContextOverflowError(len(prompt), context_tokens)
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise RequestError(f"The prompt has token ids outside 0...{vocab_size - 1}.")
    max_tokens = room if request.max_tokens is None else min(request.max_tokens, room)
    if max_tokens < 1 and not wants_no_token:
        raise RequestError("max_tokens must be at least 1.", param="max_tokens")
    _check_settings(request, vocab_size)
    return Job(replace(request, token_ids=prompt), max_tokens, time.perf_counter())


def _check_settings(request: EngineRequest, vocab_size: int) -> None:
    sampling = request.sampling
    bias = sampling.logit_bias
    if bias and not 0 <= min(bias) <= max(bias) < vocab_size:
        raise RequestError(
            f"logit_bias has token ids outside 0...{vocab_size - 1}.", param="logit_bias"
        )
    least, most = REPETITION_PENALTY
    if not least <= sampling.repetition_penalty <= most:
        raise RequestError(
            f"repetition_penalty must be from {least:g} to {most:g}.", param="repetition_penalty"
        )
    if request.logprobs is not None and not 0 <= request.logprobs <= vocab_size:
        raise RequestError("logprobs must not be negative.", param="logprobs")
