"""Tokens to events: the answers to one request, while they are being made."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, assert_never

import trio

from ds4trio.chat.recorder import TurnRecorder
from ds4trio.engine.job import EndReason, JobReport, PrefillProgress, TokenEvent, TokensEnded
from ds4trio.engine.stream import receive_any
from ds4trio.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    PromptProgress,
    TextDelta,
    ThinkingDelta,
    TokenLogprob,
    Usage,
    UsageSoFar,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ds4trio.chat.format import OutputParser, ParsedEvent
    from ds4trio.engine.job import EngineEvent, PromptToken, TopLogprobs
    from ds4trio.engine.progress import SequenceProgress
    from ds4trio.engine.stream import TokenStream
    from ds4trio.request import Message
    from ds4trio.text.tokenizer import StreamDecoder, Tokenizer

    Remember = Callable[[Sequence[int], Message, EndReason], None]

ReplyPhase = Literal["queue", "prefill", "decode"]


#: How an answer ends that is all that the model has to say.
_WHOLE = (EndReason.STOP_ID, EndReason.COMPLETE, EndReason.STOPPED)


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """How one choice's tokens become text.

    ``is_first``: the first answer to its prompt, which stands for the prompt's own figures.
    ``echo``: the prompt's text, to be said before the answer. ``remember`` is told of an answer
    that the model has ended, or its parser: its tokens, what was told of it, and which of the two.
    """

    parser: OutputParser
    decoder: StreamDecoder
    is_first: bool
    echo: str | None = None
    remember: Remember | None = None


class Reply:
    """The answers to one request. Valid inside the ``async with`` that made it.

    Iterate over it for events one by one, or call `receive` for all that are ready together.
    """

    def __init__(
        self,
        streams: Sequence[TokenStream],
        plans: Sequence[ChoicePlan],
        tokenizer: Tokenizer,
        *,
        tells_usage: bool = False,
    ) -> None:
        self._streams = streams
        self._tells_usage = tells_usage
        self._choices = [
            _Choice(index, stream, plan, tokenizer)
            for index, (stream, plan) in enumerate(zip(streams, plans, strict=True))
        ]
        self._remaining = len(streams)
        self._usage = Usage(0, 0)
        self._unread: deque[GenerationEvent] = deque()
        self._token_gaps: list[float] = []
        self.first_token_at: float | None = None
        self.phase: ReplyPhase = "queue"

    @property
    def report(self) -> JobReport | None:
        """What all sequences together took, once the worker has let go of them."""
        reports = [stream.report for stream in self._streams]
        known = [report for report in reports if report is not None]
        return _total(known) if len(known) == len(reports) else None

    def progress(self) -> list[tuple[int, SequenceProgress]]:
        """Each sequence that the engine still holds, with the index of the answer it becomes."""
        return [
            (index, stream.progress)
            for index, stream in enumerate(self._streams)
            if not stream.released.is_set()
        ]

    async def receive(self) -> list[GenerationEvent]:
        """All events that are ready, at least one. If cancelled, it has taken none.

        Raises: trio.EndOfChannel after the last ``Finished``; EngineFailed; Ds4TrioError if one
        of the sequences has failed.
        """
        while self._remaining:
            out: list[GenerationEvent] = []
            for index, events in await receive_any(self._streams):
                out += self._translate(self._choices[index], events)
            if out:
                return out
        raise trio.EndOfChannel

    def cancel(self) -> None:
        """Whoever reads is leaving: from this call on nothing more is begun for the answers."""
        for stream in self._streams:
            stream.cancel()

    def take_token_gaps(self) -> list[float]:
        """Seconds between each token received since the last call and its answer's one before."""
        gaps, self._token_gaps = self._token_gaps, []
        return gaps

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> GenerationEvent:
        if not self._unread:
            try:
                self._unread.extend(await self.receive())
            except trio.EndOfChannel:
                raise StopAsyncIteration from None
        return self._unread.popleft()

    async def text(self) -> str:
        """The first answer's text (what has not been received yet)."""
        deltas = [event async for event in self if isinstance(event, TextDelta)]
        return "".join([delta.text for delta in deltas if delta.choice == 0])

    def _translate(self, choice: _Choice, events: list[EngineEvent]) -> list[GenerationEvent]:
        out: list[GenerationEvent] = []
        tokens: list[TokenEvent] = []
        for event in events:
            match event:
                case TokenEvent():
                    self.phase = "decode"
                    self._note_time(choice, event.at)
                    tokens.append(event)
                case PrefillProgress():
                    if self.phase == "queue":
                        self.phase = "prefill"
                    out += self._progress(choice, event)
                case TokensEnded():
                    out += choice.feed(tokens)
                    out += self._finish(choice, event)
                    return self._with_usage(out)
                case _:
                    assert_never(event)
        return self._with_usage(out + choice.feed(tokens))

    def _with_usage(self, events: list[GenerationEvent]) -> list[GenerationEvent]:
        if not self._tells_usage or not events:
            return events
        usage = Usage(
            sum(choice.total for choice in self._choices if choice.is_first),
            sum(choice.generated_tokens for choice in self._choices),
            thinking_tokens=sum(choice.thinking_tokens for choice in self._choices),
        )
        return [UsageSoFar(usage), *events]

    def _note_time(self, choice: _Choice, at: float) -> None:
        if choice.last_token_at is not None:
            self._token_gaps.append(at - choice.last_token_at)
        choice.last_token_at = at
        self.first_token_at = at if self.first_token_at is None else min(self.first_token_at, at)

    def _progress(self, choice: _Choice, event: PrefillProgress) -> list[GenerationEvent]:
        choice.done, choice.total = event.done, event.total
        echoed = choice.echo(event)
        if not choice.is_first:
            return [*echoed]
        firsts = [choice for choice in self._choices if choice.is_first]
        done, total = sum(c.done for c in firsts), sum(c.total for c in firsts)
        return [PromptProgress(done, total), *echoed]

    def _finish(self, choice: _Choice, ended: TokensEnded) -> list[GenerationEvent]:
        tail, reason = choice.finish(ended.reason)
        self._remaining -= 1
        first = choice.is_first
        self._usage = Usage(
            self._usage.prompt_tokens + ended.report.prompt_tokens * first,
            self._usage.generated_tokens + choice.generated_tokens,
            self._usage.cached_prompt_tokens + ended.report.cached_prompt_tokens * first,
            self._usage.thinking_tokens + choice.thinking_tokens,
        )
        stopped = choice.parser.stop_sequence
        return [*tail, Finished(reason, self._usage, stopped, choice.index, self._remaining)]


class _Choice:
    """One sequence's tokens to the events of its answer."""

    def __init__(
        self, index: int, stream: TokenStream, plan: ChoicePlan, tokenizer: Tokenizer
    ) -> None:
        self.index = index
        self.parser = plan.parser
        self.is_first = plan.is_first
        self.generated_tokens = 0
        self.thinking_tokens = 0
        self.done = 0
        self.total = 0
        self.last_token_at: float | None = None
        self._stream = stream
        self._decoder = plan.decoder
        self._tokenizer = tokenizer
        self._echo = plan.echo
        self._remember = plan.remember
        self._turn = TurnRecorder()
        self._echoed: list[TokenLogprob] = []
        self._pending: list[TokenLogprob] = []

    def echo(self, progress: PrefillProgress) -> list[TextDelta]:
        """The prompt, once it is whole."""
        if self._echo is None:
            return []
        self._echoed += [self._prompt_logprob(token) for token in progress.logprobs]
        if progress.done < progress.total:
            return []
        text, self._echo = self._echo, None
        return [TextDelta(text, self.index, tuple(self._echoed))]

    def feed(self, tokens: Sequence[TokenEvent]) -> list[GenerationEvent]:
        out: list[GenerationEvent] = []
        for token in tokens:
            if self.parser.is_done:
                break
            thinking = self.parser.in_thinking
            self.generated_tokens += 1
            self._turn.token_ids.append(token.token_id)
            if token.logprob is not None:
                self._pending.append(self._logprob(token.token_id, token.logprob, token.top))
            text = self._decoder.feed([token.token_id])
            events = self.parser.feed(text) if text else []
            self.thinking_tokens += thinking or self.parser.in_thinking
            out += self._own(events)
        if self.parser.is_done:
            self._stream.stop()
        return _joined(out)

    def finish(self, reason: EndReason) -> tuple[list[GenerationEvent], FinishReason]:
        was_done = self.parser.is_done
        out = self._own(self.parser.finish(self._decoder.finish()))
        if self._pending:
            out.append(TextDelta("", self.index, self._take_pending()))
        is_whole = self._turn.is_whole and self.parser.stop_sequence is None
        if self._remember is not None and is_whole and reason in _WHOLE:
            self._remember(self._turn.token_ids, self._turn.message(), reason)
        if reason is EndReason.LENGTH and not was_done:
            return out, "length"
        return out, "tool_calls" if self.parser.called_tools else "stop"

    def _own(self, events: Sequence[ParsedEvent]) -> list[GenerationEvent]:
        """The parser's events as this choice's. Logprobs go with the text that they led to; those
        of thoughts and calls with nothing."""
        out: list[GenerationEvent] = []
        for event in events:
            self._turn.add(event)
            own = event if self.index == 0 else replace(event, choice=self.index)
            if isinstance(own, TextDelta):
                out.append(replace(own, logprobs=self._take_pending()) if self._pending else own)
            else:
                self._pending.clear()
                out.append(own)
        return out

    def _take_pending(self) -> tuple[TokenLogprob, ...]:
        pending = tuple(self._pending)
        self._pending.clear()
        return pending

    def _prompt_logprob(self, token: PromptToken) -> TokenLogprob:
        return self._logprob(token.token_id, token.logprob, token.top)

    def _logprob(self, token_id: int, logprob: float | None, top: TopLogprobs) -> TokenLogprob:
        data = self._tokenizer.token_bytes(token_id)
        text = data.decode(errors="replace")
        likeliest = tuple(self._logprob(other, value, ()) for other, value in top)
        return TokenLogprob(token_id, text, data, logprob, likeliest)


def _joined(events: list[GenerationEvent]) -> list[GenerationEvent]:
    """Neighbouring pieces of text, or of thought, of several tokens as one."""
    out: list[GenerationEvent] = []
    for event in events:
        match (out[-1] if out else None), event:
            case TextDelta() as last, TextDelta():
                logprobs = last.logprobs + event.logprobs
                out[-1] = TextDelta(last.text + event.text, event.choice, logprobs)
            case ThinkingDelta() as last, ThinkingDelta():
                out[-1] = ThinkingDelta(last.text + event.text, event.choice)
            case _:
                out.append(event)
    return out


def _total(reports: Sequence[JobReport]) -> JobReport:
    if len(reports) == 1:
        return reports[0]
    releases = [report.release_s for report in reports if report.release_s is not None]
    return JobReport(
        prompt_tokens=sum(r.prompt_tokens for r in reports),
        computed_prompt_tokens=sum(r.computed_prompt_tokens for r in reports),
        cached_prompt_tokens=sum(r.cached_prompt_tokens for r in reports),
        generated_tokens=sum(r.generated_tokens for r in reports),
        cached_from=next((r.cached_from for r in reports if r.cached_from), None),
        wasted_prompt_tokens=sum(r.wasted_prompt_tokens for r in reports),
        wasted_generated_tokens=sum(r.wasted_generated_tokens for r in reports),
        queued_s=max(r.queued_s for r in reports),
        release_s=max(releases, default=None),
    )
