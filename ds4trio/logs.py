"""Log lines on stderr: as text, or as one JSON object a line.

Programs call `configure`; embedders configure `logging` as they like, and find the request lines on
the logger ``ds4trio.request`` (their fields also in the record's ``fields``).
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import TYPE_CHECKING, Literal

from ds4trio.server.record import Outcome

if TYPE_CHECKING:
    from ds4trio.server.record import RequestRecord

#: The attribute of a log record that holds what its message says, as a mapping.
FIELDS = "fields"

# What can stand bare in a text line without being taken for two words or two lines.
_WORD = re.compile(r"[\w.:/+@-]+", re.ASCII)

_requests = logging.getLogger("ds4trio.request")


def configure(log_format: Literal["text", "json"]) -> None:
    """Log to stderr: this package from INFO on, others from WARNING on.

    For programs only: replaces whatever was configured before.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("ds4trio").setLevel(logging.INFO)


def log_request(record: RequestRecord) -> None:
    """One line for a request that has ended. Never holds text of the prompt or the answer."""
    seconds = None if record.ended_at is None else record.ended_at - record.started_at
    said: dict[str, str | int | float | None] = {
        "event": "request",
        "id": record.request_id,
        "client": record.client,
        "protocol": record.protocol,
        "stream": record.stream,
        "status": record.status,
        "outcome": record.outcome and record.outcome.value,
        "phase": record.phase.value,
        "prompt_tokens": record.prompt_tokens,
        "cached_prompt_tokens": record.cached_prompt_tokens,
        "cached_from": record.cached_from,
        "generated_tokens": record.generated_tokens,
        "seconds": _rounded(seconds),
        "queued_s": _rounded(record.queued_s),
        "release_s": _rounded(record.release_s),
        "detail": record.detail,
    }
    fields = {name: value for name, value in said.items() if value is not None}
    level = logging.ERROR if record.outcome is Outcome.FAILED else logging.INFO
    _requests.log(level, "%s", _Words(fields), extra={FIELDS: fields})


class _Words:
    """Fields as ``name=value``, written only if a line is."""

    def __init__(self, fields: dict[str, str | int | float]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return " ".join([f"{name}={_word(value)}" for name, value in self._fields.items()])


class _TextFormatter(logging.Formatter):
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _JsonFormatter(_TextFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **getattr(record, FIELDS, {"message": record.getMessage()}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _word(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if _WORD.fullmatch(text) else json.dumps(text)


def _rounded(seconds: float | None) -> float | None:
    """To the microsecond: below that it is noise."""
    return None if seconds is None else round(seconds, 6)
