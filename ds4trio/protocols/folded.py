"""All events of a generation as whole answers: what every protocol's non-streaming answer shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar, assert_never

from ds4trio.events import (
    Finished,
    PromptProgress,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    UsageSoFar,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ds4trio.events import GenerationEvent, TokenLogprob, Usage

    ChoiceEvent: TypeAlias = (
        ThinkingDelta | TextDelta | ToolCallStarted | ToolArgumentsDelta | ToolCallEnded | Finished
    )


@dataclass(slots=True)
class Thought:
    """A run of thinking."""

    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Said:
    """A run of text."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Called:
    """A tool call. ``ended`` is False for one that was cut off."""

    id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


Part: TypeAlias = Thought | Said | Called
RunT = TypeVar("RunT", Thought, Said)


@dataclass(slots=True)
class Answer:
    """One choice: its parts in the order in which they began, and its end."""

    parts: list[Part] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    end: Finished | None = None

    @property
    def finished(self) -> Finished:
        assert self.end is not None, "an answer is whole only when it has finished"
        return self.end

    @property
    def thinking(self) -> str:
        return "".join([part.text for part in self.parts if isinstance(part, Thought)])

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.parts if isinstance(part, Said)])

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [token for part in self.parts if isinstance(part, Said) for token in part.logprobs]

    def add(self, event: ChoiceEvent) -> None:
        match event:
            case TextDelta(text):
                said = self._last(Said)
                said.pieces.append(text)
                said.logprobs += event.logprobs
            case ThinkingDelta(text):
                self._last(Thought).pieces.append(text)
            case ToolCallStarted():
                self.calls.append(Called(event.id, event.name))
                self.parts.append(self.calls[-1])
            case ToolArgumentsDelta(index, text):
                self.calls[index].pieces.append(text)
            case ToolCallEnded(index):
                self.calls[index].ended = True
            case Finished():
                self.end = event
            case _:
                assert_never(event)

    def _last(self, kind: type[RunT]) -> RunT:
        """The run that goes on, or a new one."""
        if self.parts and isinstance(last := self.parts[-1], kind):
            return last
        run = kind()
        self.parts.append(run)
        return run


def fold(events: Iterable[GenerationEvent]) -> list[Answer]:
    """The answers, in the order of their numbers."""
    answers: dict[int, Answer] = {}
    for event in events:
        if not isinstance(event, PromptProgress | UsageSoFar):
            answers.setdefault(event.choice, Answer()).add(event)
    return [answers[choice] for choice in sorted(answers)]


def total_usage(events: Sequence[GenerationEvent]) -> Usage:
    """What all answers together took: the last event says it."""
    last = events[-1]
    assert isinstance(last, Finished)
    assert not last.remaining
    return last.usage
