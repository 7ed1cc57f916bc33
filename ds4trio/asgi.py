"""``app`` for ``hypercorn -k trio ds4trio.asgi:app``; settings come from ``DS4TRIO_*`` variables.

Nothing is read or loaded until the server starts the application's lifespan.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ds4trio.config import load_settings
from ds4trio.logs import configure
from ds4trio.server.app import App
from ds4trio.server.serve import make_state
from ds4trio.service import open_service

if TYPE_CHECKING:
    from ds4trio.errors import Ds4TrioError
    from ds4trio.server.state import ServerState


def _state_from_environment() -> ServerState:
    settings = load_settings()
    configure(settings.log_format)
    return make_state(settings)


def _exit(error: Ds4TrioError) -> None:
    """End the process: without a model there is nothing to serve, and a supervisor can restart it.

    Hypercorn would turn any exception here into a page of traceback, or go on serving.
    """
    sys.stderr.write(f"ds4trio: {error.message}\n")
    sys.stderr.flush()
    os._exit(1)


app = App(_state_from_environment, open_service, _exit)
