"""Processes that are killed, and several at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_killed_at_every_step(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(HERE / "kill_while_writing.py"), str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    kills, lengths = map(int, result.stdout.split())
    assert kills > 30  # of the steps of three files
    assert lengths == 4  # each file is there or not


def test_two_processes_at_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "share_folder.py"), str(tmp_path), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    for process in processes:
        said, _ = process.communicate()
        assert process.returncode == 0
        hits, evicted_bytes = map(int, said.split())
        assert hits > 5
        assert evicted_bytes > 0
    left = {file.name for file in tmp_path.glob("segments/*") if file.suffix != ".safetensors"}
    assert left == {"bad"}
