from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from ds4trio import logs
from ds4trio.server.record import Outcome, Phase, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """Gives the test logging as a program finds it, and pytest its own back."""
    root, ours = logging.getLogger(), logging.getLogger("ds4trio")
    before = root.handlers, root.level, ours.level
    root.handlers = []
    yield
    root.handlers, level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


def a_request() -> RequestRecord:
    return RequestRecord(
        request_id="req_1",
        protocol="chat",
        client="127.0.0.1:9",
        started_at=100.0,
        stream=True,
        phase=Phase.DECODE,
        outcome=Outcome.CLIENT_GONE,
        status=200,
        prompt_tokens=12,
        cached_prompt_tokens=4,
        generated_tokens=40,
        queued_s=0.25,
        release_s=0.0030000001,
        ended_at=101.5,
    )


SAID = {
    "event": "request",
    "id": "req_1",
    "client": "127.0.0.1:9",
    "protocol": "chat",
    "stream": True,
    "status": 200,
    "outcome": "client_gone",
    "phase": "decode",
    "prompt_tokens": 12,
    "cached_prompt_tokens": 4,
    "generated_tokens": 40,
    "seconds": 1.5,
    "queued_s": 0.25,
    "release_s": 0.003,
}
LINE = (
    "event=request id=req_1 client=127.0.0.1:9 protocol=chat stream=true status=200 "
    "outcome=client_gone phase=decode prompt_tokens=12 cached_prompt_tokens=4 "
    "generated_tokens=40 seconds=1.5 queued_s=0.25 release_s=0.003"
)


@pytest.mark.usefixtures("untouched_logging")
def test_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    logs.log_request(a_request())
    out, err = capsys.readouterr()
    assert out == ""
    time, rest = err.split(" ", 1)
    assert rest == f"INFO ds4trio.request: {LINE}\n"
    assert_now(time)


@pytest.mark.usefixtures("untouched_logging")
def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logs.log_request(a_request())
    line = json.loads(capsys.readouterr().err)
    assert_now(line.pop("time"))
    assert line == {"level": "info", "logger": "ds4trio.request", **SAID}


def assert_now(time: str) -> None:
    age = datetime.now(UTC) - datetime.fromisoformat(time)
    assert timedelta(0) <= age < timedelta(hours=1)


@pytest.mark.usefixtures("untouched_logging")
def test_other_lines_and_exceptions_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger("ds4trio.server").exception("it %s\nbroke", "all")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"]) == ("error", "it all\nbroke")
    assert line["exception"].endswith("KeyError: 'lost'")


@pytest.mark.usefixtures("untouched_logging")
def test_others_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    logs.configure("text")
    logging.getLogger("somebody.else").info("chatter")
    logging.getLogger("somebody.else").warning("trouble")
    logging.getLogger("ds4trio.server").info("ready")
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["WARNING somebody.else: trouble", "INFO ds4trio.server: ready"]


def test_embedders_get_the_line_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ds4trio.request"):
        logs.log_request(a_request())
    (record,) = caplog.records
    assert record.getMessage() == LINE
    assert getattr(record, logs.FIELDS) == SAID


@pytest.mark.parametrize(
    ("outcome", "level"),
    [(o, logging.ERROR if o is Outcome.FAILED else logging.INFO) for o in Outcome],
)
def test_only_our_own_failures_are_errors(
    caplog: pytest.LogCaptureFixture, outcome: Outcome, level: int
) -> None:
    request = a_request()
    request.outcome = outcome
    with caplog.at_level(logging.INFO, logger="ds4trio.request"):
        logs.log_request(request)
    assert [record.levelno for record in caplog.records] == [level]


def test_a_request_that_was_refused_says_only_what_there_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = RequestRecord("req_1", "chat", "-", started_at=100.0, outcome=Outcome.REJECTED)
    request.status = 400
    request.ended_at = 100.0
    with caplog.at_level(logging.INFO, logger="ds4trio.request"):
        logs.log_request(request)
    assert caplog.messages == [
        "event=request id=req_1 client=- protocol=chat stream=false status=400 outcome=rejected "
        "phase=body prompt_tokens=0 cached_prompt_tokens=0 generated_tokens=0 seconds=0.0"
    ]


def test_words_from_outside_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    request = a_request()
    request.detail = 'no\nINFO ds4trio.request outcome="completed"'
    with caplog.at_level(logging.INFO, logger="ds4trio.request"):
        logs.log_request(request)
    (message,) = caplog.messages
    assert message.endswith(r' detail="no\nINFO ds4trio.request outcome=\"completed\""')
