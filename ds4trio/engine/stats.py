"""What an engine has done, and is doing, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ds4trio.engine.messages import KvFigures


@dataclass(slots=True)
class EngineStats:
    """Counts since the start, and what is there now. Runs on: trio, so no locks.

    ``steps`` are forwards. ``prompt_tokens`` were computed or found in the cache;
    ``generated_tokens`` were sampled and published. *Wasted* tokens are those whose forward ended
    after their reader had left: the prompt's are among ``prompt_tokens``; the generated ones were
    never sampled, so they are not among ``generated_tokens``. *Drafted* tokens were guessed ahead
    and computed; *accepted* ones of them proved right. ``running`` and ``waiting`` count
    what the worker holds: a reader that left is counted until the worker has let go.
    """

    steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    wasted_prompt_tokens: int = 0
    wasted_generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv: KvFigures = field(default_factory=KvFigures)
