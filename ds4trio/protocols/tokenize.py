"""``POST /tokenize`` and ``/detokenize``, and ``GET /tokenizer_info``.

Source: vLLM's server, whose shapes evaluation harnesses and gateways read.
"""

# No deferred annotations: msgspec reads those of the structs at run time.
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ds4trio.protocols.fields import invalid, read, required, unsupported
from ds4trio.protocols.table import PROTOCOLS
from ds4trio.request import GenerationRequest, TextPrompt


class TokenizeFields(msgspec.Struct):
    prompt: str | None = None
    messages: list[object] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(msgspec.Struct):
    tokens: list[int] | None = None


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """``bare``: a text by itself, without what begins every prompt; one that is a control token's
    spelling is that token, for so clients find out its id. ``with_texts``: and each token's text.
    """

    generation: GenerationRequest
    bare: str | None
    with_texts: bool


def parse_tokenize(body: bytes) -> TokenizeRequest:
    """The request whose prompt is to be turned into tokens. Raises: RequestError."""
    fields = read(body, TokenizeFields)
    if fields.messages is not None:
        if fields.add_generation_prompt is False:
            raise unsupported("add_generation_prompt", "a prompt ends where the answer begins")
        # The conversation is chat's, with all that may stand beside it there.
        generation = PROTOCOLS["/v1/chat/completions"].parse(body, "").generation
        return TokenizeRequest(generation, None, bool(fields.return_token_strs))
    text = required(fields.prompt, "prompt")
    bare = text if fields.add_special_tokens is False else None
    return TokenizeRequest(
        GenerationRequest(TextPrompt(text)), bare, bool(fields.return_token_strs)
    )


def render_tokens(
    token_ids: Sequence[int], context_tokens: int, texts: Sequence[str] | None
) -> bytes:
    return msgspec.json.encode(
        {
            "count": len(token_ids),
            "max_model_len": context_tokens,
            "tokens": list(token_ids),
            "token_strs": texts,
        }
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


def render_tokenizer_info(told: Mapping[str, str | None], context_tokens: int) -> bytes:
    """What a client must know to do the tokenizer's and the template's work itself."""
    return msgspec.json.encode({**told, "model_max_length": context_tokens})
