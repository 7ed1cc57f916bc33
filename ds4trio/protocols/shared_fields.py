"""What protocols ask in the same words: ranges, stop strings, switches, and ids to answer with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

from msgspec import Meta

from ds4trio.protocols.fields import invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

#: OpenAI allows 4; open servers more. Each one is searched for in every piece of text.
MAX_STOP_STRINGS = 16
#: Of one. Its search is prepared on Trio's thread, for each answer: a million took seconds.
MAX_STOP_CHARS = 512

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
#: 0 means all tokens to llama.cpp, -1 to vLLM.
TopK = Annotated[int, Meta(ge=-1)]

#: The types of ``thinking`` that say yes or no; the others leave it to the model.
THINKING_SWITCHES: Mapping[str | None, bool] = {"enabled": True, "disabled": False}


def stop_strings(stop: str | list[str] | None, param: str = "stop") -> tuple[str, ...]:
    """Raises: RequestError."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid(param, f"more than {MAX_STOP_STRINGS} strings")
    for i, string in enumerate(strings):
        at = param if isinstance(stop, str) else f"{param}[{i}]"
        if not string:
            raise invalid(at, "an empty string would stop every answer")
        if len(string) > MAX_STOP_CHARS:
            raise invalid(at, f"more than {MAX_STOP_CHARS} characters")
    return strings


def new_hex_id() -> str:
    return uuid4().hex
