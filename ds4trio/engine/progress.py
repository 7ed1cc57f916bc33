"""How far one sequence has come, as far as the loop has heard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ds4trio.engine.job import PrefillProgress, TokenEvent

if TYPE_CHECKING:
    from ds4trio.cache.words import CacheSource
    from ds4trio.engine.job import EngineEvent


@dataclass(slots=True)
class SequenceProgress:
    """Units: tokens; ``time.perf_counter()`` seconds. Runs on: trio.

    ``prompt_done`` are computed or reused: ``cached_prompt_tokens`` of them were reused, and found
    in ``cached_from``. ``ending``: nobody wants it any more, and the worker has
    not let go of it yet.
    """

    prompt_tokens: int
    max_tokens: int
    admitted_at: float | None = None
    first_token_at: float | None = None
    prompt_done: int = 0
    cached_prompt_tokens: int = 0
    cached_from: CacheSource | None = None
    generated_tokens: int = 0
    ending: bool = False

    @property
    def phase(self) -> Literal["queue", "prefill", "decode"]:
        if self.admitted_at is None:
            return "queue"
        return "prefill" if self.first_token_at is None else "decode"

    def tokens_per_second(self, now: float) -> float | None:
        """The mean in its present phase, pauses included; None before there is one."""
        if self.first_token_at is not None:
            tokens, since = self.generated_tokens - 1, self.first_token_at
        elif self.admitted_at is not None:
            tokens, since = self.prompt_done - self.cached_prompt_tokens, self.admitted_at
        else:
            return None
        return tokens / (now - since) if tokens and now > since else None

    def note(self, event: EngineEvent) -> None:
        """Take in what the worker says."""
        match event:
            case TokenEvent():
                self.generated_tokens += 1
                if self.first_token_at is None:
                    self.first_token_at = event.at
            case PrefillProgress():
                self.prompt_done = event.done
                self.cached_prompt_tokens = event.cached
                self.cached_from = event.cached_from
