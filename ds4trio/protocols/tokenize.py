"""``POST /tokenize`` and ``/detokenize``.

Source: vLLM's server, whose shapes evaluation harnesses and gateways read.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from collections.abc import Sequence

import msgspec

from ds4trio.protocols.fields import invalid, read, required
from ds4trio.protocols.table import PROTOCOLS
from ds4trio.request import GenerationRequest, TextPrompt


class TokenizeFields(msgspec.Struct):
    prompt: str | None = None
    messages: list[object] | None = None


class DetokenizeFields(msgspec.Struct):
    tokens: list[int] | None = None


def parse_tokenize(body: bytes) -> GenerationRequest:
    """The request whose prompt is to be turned into tokens. Raises: RequestError."""
    fields = read(body, TokenizeFields)
    if fields.messages is not None:
        # The conversation is chat's, with all that may stand beside it there.
        return PROTOCOLS["/v1/chat/completions"].parse(body, "").generation
    return GenerationRequest(TextPrompt(required(fields.prompt, "prompt")))


def render_tokens(token_ids: Sequence[int], context_tokens: int) -> bytes:
    count = len(token_ids)
    return msgspec.json.encode(
        {"count": count, "max_model_len": context_tokens, "tokens": list(token_ids)}
    )


def parse_detokenize(body: bytes) -> list[int]:
    """Raises: RequestError."""
    tokens = required(read(body, DetokenizeFields).tokens, "tokens")
    for at, token_id in enumerate(tokens):
        if token_id < 0:
            raise invalid(f"tokens[{at}]", "below 0")
    return tokens


def render_text(text: str) -> bytes:
    return msgspec.json.encode({"prompt": text})
