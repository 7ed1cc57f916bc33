"""Tool calls of a model that forgot to end its thoughts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.chat.held import held_length
from ds4trio.events import TextDelta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.chat.tool_parser import CallParser, ToolEvent


class ThoughtCalls:
    """Thoughts, and the calls with which they break off.

    Whole calls after which nothing comes at all, not even the end of the thoughts, are meant: what
    waits for them would wait in vain. Any others were only thought about. So text that looks like
    calls is held back until more text, or the end, tells.
    """

    def __init__(self, new_parser: Callable[[], CallParser]) -> None:
        self._opening = new_parser().opening
        self._new_parser = new_parser
        self._held = ""
        self._trial: CallParser | None = None
        self._calls: list[ToolEvent] = []

    def feed(self, text: str) -> str:
        """What is certain to be thought."""
        said: list[str] = []
        while text:
            text = self._read_call(text, said) if self._trial else self._read_text(text, said)
        return "".join(said)

    def flush(self) -> str:
        """The thoughts have ended: what was held back is thought."""
        held, self._held = self._held, ""
        self._trial, self._calls = None, []
        return held

    def finish(self) -> tuple[str, Sequence[ToolEvent]]:
        """At the end of all text: what was held back is either thought or calls."""
        trial = self._trial
        if trial is None:
            return self.flush(), ()
        self._calls += trial.finish()
        if not trial.ended or trial.ended < trial.started or _has_text(self._calls):
            return self.flush(), ()
        return "", self._calls

    def _read_text(self, text: str, said: list[str]) -> str:
        known = self._held + text
        at = known.find(self._opening)
        if at < 0:
            sure = len(known) - held_length(known, self._opening)
            said.append(known[:sure])
            self._held = known[sure:]
            return ""
        said.append(known[:at])
        self._held, self._trial = "", self._new_parser()
        return known[at:]

    def _read_call(self, text: str, said: list[str]) -> str:
        assert self._trial is not None  # this is called only then
        self._held += text
        self._calls += self._trial.feed(text)
        if not _has_text(self._calls):
            return ""
        held = self.flush()
        said.append(held[: len(self._opening)])
        return held[len(self._opening) :]


def _has_text(events: Sequence[ToolEvent]) -> bool:
    return any(isinstance(event, TextDelta) for event in events)
