"""What the server remembers of one request, for its metrics and its one log line.

Knows nothing of how either is written. Never holds prompt or answer text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds4trio.engine.job import JobReport


class Outcome(StrEnum):
    """How a request ended. Exactly one, decided once."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    STALLED = "stalled"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"
    SHUTDOWN = "shutdown"


class Phase(StrEnum):
    """Where a request was when it ended."""

    BODY = "body"
    TOKENIZE = "tokenize"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    WRITE = "write"


@dataclass(slots=True)
class RequestRecord:
    """Filled in as the request goes. Times are ``time.perf_counter()`` seconds."""

    request_id: str
    protocol: str
    client: str
    #: The name of the API key that asked; None where no key is needed.
    key: str | None = None
    #: What it asks for, heard if its key may ask for it.
    priority: int = 0
    started_at: float = field(default_factory=perf_counter)
    stream: bool = False
    phase: Phase = Phase.BODY
    outcome: Outcome | None = None
    status: int | None = None
    #: Why, in a few words, where the outcome alone does not say it.
    detail: str | None = None
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    #: Where those were found: memory or disk.
    cached_from: str | None = None
    generated_tokens: int = 0
    #: Of the prompt or generated: computed when the server knew that the client was gone.
    wasted_tokens: int = 0
    queued_s: float | None = None
    first_token_at: float | None = None
    release_s: float | None = None
    ended_at: float | None = None

    def take(self, report: JobReport) -> None:
        """What the engine says it took."""
        self.prompt_tokens = report.prompt_tokens
        self.cached_prompt_tokens = report.cached_prompt_tokens
        self.cached_from = report.cached_from
        self.generated_tokens = report.generated_tokens
        self.wasted_tokens = report.wasted_prompt_tokens + report.wasted_generated_tokens
        self.queued_s = report.queued_s
        self.release_s = report.release_s
