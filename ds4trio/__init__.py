"""A Trio-native LLM inference server: when a client leaves, its work stops.

::

    async with ds4trio.open_engine("smollm2-135m-instruct") as engine:
        async with engine.chat([{"role": "user", "content": "Hi"}], max_tokens=64) as reply:
            async for event in reply:
                ...

Names are imported when first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds4trio.config import Settings as Settings
    from ds4trio.config import load_settings as load_settings
    from ds4trio.errors import ConfigError as ConfigError
    from ds4trio.errors import Ds4TrioError as Ds4TrioError
    from ds4trio.errors import EngineFailed as EngineFailed
    from ds4trio.errors import LoadError as LoadError
    from ds4trio.errors import OverloadedError as OverloadedError
    from ds4trio.errors import RequestError as RequestError
    from ds4trio.events import Finished as Finished
    from ds4trio.events import GenerationEvent as GenerationEvent
    from ds4trio.events import PromptProgress as PromptProgress
    from ds4trio.events import TextDelta as TextDelta
    from ds4trio.events import Usage as Usage
    from ds4trio.opening import open_engine as open_engine
    from ds4trio.reply import Reply as Reply
    from ds4trio.request import Conversation as Conversation
    from ds4trio.request import GenerationRequest as GenerationRequest
    from ds4trio.request import Message as Message
    from ds4trio.request import SamplingParams as SamplingParams
    from ds4trio.server.serve import serve as serve
    from ds4trio.service import Service as Service

_HOMES = {
    "ds4trio.config": ("Settings", "load_settings"),
    "ds4trio.errors": (
        "ConfigError",
        "Ds4TrioError",
        "EngineFailed",
        "LoadError",
        "OverloadedError",
        "RequestError",
    ),
    "ds4trio.events": ("Finished", "GenerationEvent", "PromptProgress", "TextDelta", "Usage"),
    "ds4trio.request": ("Conversation", "GenerationRequest", "Message", "SamplingParams"),
    "ds4trio.server.serve": ("serve",),
    "ds4trio.reply": ("Reply",),
    "ds4trio.opening": ("open_engine",),
    "ds4trio.service": ("Service",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for names in _HOMES.values() for name in names)
