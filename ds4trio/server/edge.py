"""The edge of a connection: which exceptions pass, and which are a log line."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from ds4trio.server.transport import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

#: What ends the process, or belongs to the scope around the connection.
PASSING = (trio.Cancelled, KeyboardInterrupt, SystemExit)


@contextmanager
def errors_logged(what: str) -> Iterator[None]:
    """Log and swallow everything but PASSING, which is taken out of groups. A client's leaving is
    no error."""
    try:
        yield
    except BaseExceptionGroup as group:
        passing, rest = group.split(PASSING)
        errors = rest.split(ConnectionLost)[1] if rest is not None else None
        if errors is not None:
            logger.error("%s failed", what, exc_info=errors)
        if passing is not None:
            raise passing from None
    except PASSING:
        raise
    except ConnectionLost:
        pass
    except BaseException as error:
        logger.error("%s failed", what, exc_info=error)
