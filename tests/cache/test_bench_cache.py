"""``ds4trio bench cache``, with a model that computes anything at once: it finds what it timed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tiny_llama import write_tiny_llama

from ds4trio import cli

if TYPE_CHECKING:
    from pathlib import Path


def test_each_way_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself refuses a figure of a prompt that was not where it should be."""
    model = str(write_tiny_llama(tmp_path / "model"))
    flags = ["--tokens", "300", "70", "--repeats", "2", "--json", "--threads", "1"]
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "cache", model, *flags])
    assert end.value.code == 0
    long, short = json.loads(capsys.readouterr().out)
    assert (long["tokens"], short["tokens"]) == (300, 70)
    for result in (long, short):
        assert min(result["cold_s"], result["memory_s"], result["disk_s"]) > 0
        assert result["gain"] == pytest.approx(result["cold_s"] / result["disk_s"])
