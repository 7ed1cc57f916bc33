"""How a download or a preparation tells the user that it moves.

A bar when a person is watching, one log line when nobody is.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    Advance: TypeAlias = Callable[[int], object]


class Progress(Protocol):
    """Where a long piece of work reports. Called from the thread that does the work."""

    def note(self, text: str) -> None:
        """Say one thing."""
        ...

    def stage(self, title: str, total: int, unit: str) -> AbstractContextManager[Advance]:
        """A piece of work of known size; inside, call the result with what has been done since.

        Units: ``total`` and the steps are in ``unit``; ``"B"`` is bytes.
        """
        ...


def default_progress() -> Progress:
    """Bars if stderr is a terminal, else log lines."""
    return TerminalProgress() if sys.stderr.isatty() else LogProgress()


class TerminalProgress:
    """Bars on stderr."""

    def note(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        with tqdm(
            desc=title, total=total, unit=unit, unit_scale=unit == "B", file=sys.stderr
        ) as bar:
            yield bar.update


class LogProgress:
    """One log line a stage."""

    def note(self, text: str) -> None:
        logging.getLogger("ds4trio.store").info("%s", text)

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        self.note(f"{title} ({total:,} {unit})")
        yield lambda done: None
