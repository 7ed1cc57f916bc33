"""Token log probabilities as OpenAI writes them: one shape for chats, another for completions."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.events import TokenLogprob

#: What OpenAI writes for a token that cannot be; JSON has no infinity.
IMPOSSIBLE = -9999.0
#: Of one place; OpenAI's own bound in chats.
MAX_TOP_LOGPROBS = 20


def chat_tokens(tokens: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """``logprobs.content`` of a chat (and of the Responses API's ``output_text``)."""
    return [
        _chat_token(token) | {"top_logprobs": [_chat_token(other) for other in token.top]}
        for token in tokens
    ]


def completion_logprobs(tokens: Sequence[TokenLogprob], first_offset: int) -> dict[str, object]:
    """``logprobs`` of a completion whose tokens begin ``first_offset`` characters into its text."""
    widths = [_characters(token) for token in tokens]
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [_likeliest(token) for token in tokens],
        "text_offset": list(accumulate(widths[:-1], initial=first_offset)) if tokens else [],
    }


def offset_after(tokens: Sequence[TokenLogprob], first_offset: int) -> int:
    """Where the token after these begins."""
    return first_offset + sum([_characters(token) for token in tokens])


def _chat_token(token: TokenLogprob) -> dict[str, object]:
    return {
        "token": token.text,
        "logprob": IMPOSSIBLE if token.logprob is None else _finite(token.logprob),
        "bytes": list(token.data),
    }


def _likeliest(token: TokenLogprob) -> dict[str, float] | None:
    """By name, the token itself always among them. A prompt's first token has none."""
    if token.logprob is None:
        return None
    likeliest: dict[str, float] = {}
    for each in (*token.top, token):
        if each.logprob is not None:
            # Two tokens may have one name; the likelier one keeps it.
            name, logprob = _name(each), max(each.logprob, IMPOSSIBLE)
            likeliest[name] = max(likeliest.get(name, logprob), logprob)
    return likeliest


def _name(token: TokenLogprob) -> str:
    """The text, or OpenAI's spelling of bytes that are no text of their own."""
    try:
        token.data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in token.data])
    return token.text


def _characters(token: TokenLogprob) -> int:
    """How many characters begin in a token (UTF-8's other bytes continue one)."""
    return sum([byte & 0xC0 != 0x80 for byte in token.data])


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, IMPOSSIBLE)
