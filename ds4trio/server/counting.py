"""Routes that only turn text into tokens, or back.

They run through an `Exchange` like every request, so a client that leaves leaves nothing behind.
Bodies may be as large as any other's, so none is read on the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ds4trio.protocols.anthropic_messages import AnthropicMessages
from ds4trio.protocols.tokenize import (
    parse_detokenize,
    parse_tokenize,
    render_text,
    render_tokenizer_info,
    render_tokens,
)
from ds4trio.threads import run_off_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ds4trio.service import Service


@dataclass(frozen=True, slots=True)
class Counter:
    """``name`` stands in metrics and logs; errors look ``like`` those of that protocol's path."""

    name: str
    like: str
    compute: Callable[[Service, bytes], Awaitable[bytes]]


async def count_tokens(service: Service, body: bytes) -> bytes:
    """Anthropic's count: what ``usage.input_tokens`` would say of the same request."""
    messages = AnthropicMessages()
    token_ids = await service.prompt_ids(await run_off_loop(messages.parse_count_tokens, body))
    return messages.render_count_tokens(len(token_ids))


async def tokenize(service: Service, body: bytes) -> bytes:
    """vLLM's: the tokens of a text, or of a conversation as the model would see it."""
    asked = await run_off_loop(parse_tokenize, body)
    if asked.bare is None:
        token_ids = await service.prompt_ids(asked.generation)
    else:
        token_ids = await run_off_loop(service.bare_ids, asked.bare)

    def render() -> bytes:
        texts = service.texts_of(token_ids) if asked.with_texts else None
        return render_tokens(token_ids, service.engine.context_tokens, texts)

    return await run_off_loop(render)


async def detokenize(service: Service, body: bytes) -> bytes:
    """vLLM's: the text of tokens; control tokens have none."""
    return await run_off_loop(lambda: render_text(service.text_of(parse_detokenize(body))))


def tokenizer_info(service: Service) -> bytes:
    """vLLM's: what a client needs to do the tokenizer's work itself."""
    return render_tokenizer_info(service.tokenizer_told, service.engine.context_tokens)


COUNTERS: Mapping[str, Counter] = MappingProxyType(
    {
        AnthropicMessages.count_path: Counter("count_tokens", "/v1/messages", count_tokens),
        "/tokenize": Counter("tokenize", "/v1/completions", tokenize),
        "/detokenize": Counter("detokenize", "/v1/completions", detokenize),
    }
)
