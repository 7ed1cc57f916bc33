"""``app`` for ``hypercorn -k trio ds4trio.asgi:app``; settings come from ``DS4TRIO_*`` variables.

Nothing is read or loaded until the server starts the application's lifespan.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ds4trio.config import load_settings
from ds4trio.logs import configure
from ds4trio.opening import open_service
from ds4trio.server import hypercorn_seam
from ds4trio.server.app import App
from ds4trio.server.serve import connection_limits, for_good, make_state, stop_on_signal

if TYPE_CHECKING:
    from ds4trio.errors import Ds4TrioError
    from ds4trio.server.state import ServerState


def _start() -> ServerState:
    settings = load_settings()
    configure(settings.log_format)
    state = make_state(settings)
    hypercorn_seam.install(connection_limits(settings), ending=(state.stopping, state.drained))
    return state


def _exit(error: Ds4TrioError) -> None:
    """End the process: without a model there is nothing to serve, and a supervisor can restart it.

    Hypercorn would turn any exception here into a page of traceback, or go on serving.
    """
    sys.stderr.write(f"ds4trio: {error.message}\n")
    sys.stderr.flush()
    os._exit(1)


app = App(_start, for_good(open_service), on_failure=_exit, beside=stop_on_signal)
