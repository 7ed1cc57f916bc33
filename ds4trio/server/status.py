"""The bodies of the routes that say how the server is, from plain values."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

OWNER = "ds4trio"


def health() -> bytes:
    """The process answers; nothing is said of its model."""
    return msgspec.json.encode({"status": "ok"})


def ready(ready: bool) -> bytes:
    """Whether a request sent now would be served."""
    return msgspec.json.encode({"status": "ready" if ready else "not_ready"})


def models(name: str, context_tokens: int, created: int = 0) -> bytes:
    """The list of models, as OpenAI and Anthropic have it. ``created`` is in seconds since the
    epoch; 0: not known."""
    listed = [_model(name, context_tokens, created)]
    page = {"has_more": False, "first_id": name, "last_id": name}
    return msgspec.json.encode({"object": "list", "data": listed, **page})


def model(name: str, context_tokens: int, created: int = 0) -> bytes:
    """One of that list."""
    return msgspec.json.encode(_model(name, context_tokens, created))


def _model(name: str, context_tokens: int, created: int) -> dict[str, str | int | datetime]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        # Clients look for the context's size under OpenRouter's name for it or under vLLM's.
        "context_length": context_tokens,
        "max_model_len": context_tokens,
        # The rest is Anthropic's. What an answer may take is bounded by the context alone.
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC),
        "lifecycle": "active",
        "max_input_tokens": context_tokens,
        "max_tokens": context_tokens,
    }
