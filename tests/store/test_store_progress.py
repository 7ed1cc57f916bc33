from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from ds4trio.store.progress import LogProgress, TerminalProgress, default_progress

if TYPE_CHECKING:
    import pytest


def test_one_log_line_a_stage_when_nobody_watches(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = default_progress()
    assert isinstance(progress, LogProgress)
    with (
        caplog.at_level(logging.INFO, "ds4trio.store"),
        progress.stage("downloading x", 2_000_000, "B") as advance,
    ):
        for _ in range(100):
            advance(20_000)
    assert caplog.messages == ["downloading x (2,000,000 B)"]
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = default_progress()
    assert isinstance(progress, TerminalProgress)
    progress.note("looking")
    with progress.stage("downloading x", 2_000_000, "B") as advance:
        advance(1_000_000)
        advance(1_000_000)
    error = capsys.readouterr().err
    assert error.startswith("looking\n")
    assert "downloading x: 100%" in error
    assert "2.00M/2.00M" in error
