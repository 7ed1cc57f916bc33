"""Completion as bash itself does it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ds4trio.cli import main


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ins", {"inspect"}),
        ("co", {"config", "completion"}),
        ("serve --max-run", {"--max-running"}),
        ("serve --no-p", {"--no-page", "--no-prefix-cache"}),
        ("cache ver", {"verify"}),
        ("completion b", {"bash"}),
    ],
)
def test_bash_offers(typed: str, offered: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["completion", "bash"])
    assert left.value.code == 0
    words = ["ds4trio", *typed.split()]
    ask = (
        f"\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
        "\n$(complete -p ds4trio | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
        '\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    said = subprocess.run(
        ["bash", "--norc"],
        input=capsys.readouterr().out + ask,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(said.stdout.split()) == offered, said.stderr
