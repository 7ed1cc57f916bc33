"""Whether a request can be served at all, whoever else is there."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ds4trio.engine.messages import Job
from ds4trio.errors import ContextOverflowError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ds4trio.engine.job import EngineRequest
    from ds4trio.models.base import StateLayout

#: What a program may ask for, more than any protocol lets through: far more than anybody uses, and
#: what no logit is made infinite by. torch refuses to store numbers outside float32, which would
#: end the worker.
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "temperature": (0, 1e3),
        "top_p": (0, 1),
        "min_p": (0, 1),
        "presence_penalty": (-1e3, 1e3),
        "frequency_penalty": (-1e3, 1e3),
        "repetition_penalty": (1e-3, 1e3),
    }
)
#: Minus infinity, the usual way to forbid a token, is allowed too.
MOST_BIAS = 1e9


@dataclass(frozen=True, slots=True)
class StateMemory:
    """How much there is for the states of all sequences, of which so many may run."""

    layout: StateLayout
    budget_bytes: int
    max_running: int

    def room(self, prompt_tokens: int, wanted: int | None, most: int) -> int:
        """How many tokens of an answer there is memory for: of those wanted, or, if that was not
        said, of a fair share, so that others can run beside it; and ``most`` at most.

        Raises: RequestError, if there is not even room for the prompt.
        """
        least = self.layout.nbytes(prompt_tokens + min(most, 1))
        if least > self.budget_bytes:
            raise RequestError(
                f"This prompt needs {least} bytes of memory, more than all that there is for "
                f"prompts and answers together: {self.budget_bytes} bytes (kv_budget_bytes).",
                param="prompt",
                code="context_length_exceeded",
            )
        nbytes = self.budget_bytes
        if wanted is None:
            share = self.budget_bytes // self.max_running
            nbytes = min(nbytes, max(least, self.layout.nbytes(prompt_tokens) + share))
        lengths = range(prompt_tokens, prompt_tokens + most + 1)
        return bisect_right(lengths, nbytes, key=self.layout.nbytes) - 1


def new_job(
    request: EngineRequest, context_tokens: int, vocab_size: int, memory: StateMemory
) -> Job:
    """The job for a request; ``max_tokens`` beyond context and memory is cut to what fits.

    Raises: RequestError, ContextOverflowError.
    """
    prompt = tuple(request.token_ids)
    if not prompt:
        raise RequestError("The prompt is empty.", param="prompt")
    room = context_tokens - len(prompt)
    if room < (0 if request.max_tokens == 0 else 1):
        raise ContextOverflowError(len(prompt), context_tokens)
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise RequestError(
            f"The prompt has token ids outside 0...{vocab_size - 1}.", param="prompt"
        )
    max_tokens = room if request.max_tokens is None else min(request.max_tokens, room)
    if max_tokens < 0:
        raise RequestError("max_tokens must not be negative.", param="max_tokens")
    _check_settings(request, vocab_size)
    max_tokens = memory.room(len(prompt), request.max_tokens, max_tokens)
    return Job(replace(request, token_ids=prompt), max_tokens, time.perf_counter())


def _check_settings(request: EngineRequest, vocab_size: int) -> None:
    sampling = request.sampling
    bias = sampling.logit_bias
    if bias and not 0 <= min(bias) <= max(bias) < vocab_size:
        raise RequestError(
            f"logit_bias has token ids outside 0...{vocab_size - 1}.", param="logit_bias"
        )
    if not all(-MOST_BIAS <= each <= MOST_BIAS or each == -math.inf for each in bias.values()):
        raise RequestError(f"logit_bias must be at most {MOST_BIAS:g}.", param="logit_bias")
    for name, (least, most) in BOUNDS.items():
        if not least <= getattr(sampling, name) <= most:  # nor is NaN
            raise RequestError(f"{name} must be from {least:g} to {most:g}.", param=name)
    if request.logprobs is not None and not 0 <= request.logprobs <= vocab_size:
        raise RequestError("logprobs must not be negative.", param="logprobs")
