"""One model, ready to answer: tokenizer, chat format and engine together.

This is what an embedder holds and what the server serves. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, assert_never

import trio

from ds4trio.chat.format import Prompt
from ds4trio.chat.load import load_chat_format
from ds4trio.chat.output import AnswerParser
from ds4trio.config import Settings
from ds4trio.engine import engine as core
from ds4trio.engine.job import EndReason, EngineRequest, PrefillProgress, TokenEvent, TokensEnded
from ds4trio.errors import ContextOverflowError, RequestError
from ds4trio.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    PromptProgress,
    TextDelta,
    Usage,
)
from ds4trio.request import (
    Conversation,
    GenerationRequest,
    Message,
    PromptBatch,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from ds4trio.store.resolve import resolve_model
from ds4trio.text.load import load_tokenizer
from ds4trio.threads import run_off_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from ds4trio.chat.format import ChatFormat, OutputParser
    from ds4trio.engine.engine import Engine, TokenStream
    from ds4trio.engine.job import EngineEvent, JobReport
    from ds4trio.models.base import CausalLM
    from ds4trio.text.tokenizer import StreamDecoder, Tokenizer

ReplyPhase = Literal["queue", "prefill", "decode"]


class Reply:
    """One answer while it is being made. Valid inside the ``async with`` that made it.

    Iterate over it for events one by one, or call `receive` for all that are ready together.
    """

    def __init__(self, stream: TokenStream, parser: OutputParser, decoder: StreamDecoder) -> None:
        self._stream = stream
        self._parser = parser
        self._decoder = decoder
        self._unread: deque[GenerationEvent] = deque()
        self._generated_tokens = 0
        self._token_times: list[float] = []
        self._finished = False
        self.phase: ReplyPhase = "queue"

    @property
    def report(self) -> JobReport | None:
        """What the sequence took, once the worker has let go of it."""
        return self._stream.report

    async def receive(self) -> list[GenerationEvent]:
        """All events that are ready, at least one.

        Raises: trio.EndOfChannel after ``Finished``; EngineFailed.
        """
        while not self._finished:
            if events := self._translate(await self._stream.receive()):
                return events
        raise trio.EndOfChannel

    def take_token_times(self) -> list[float]:
        """When the tokens received since the last call were sampled (``perf_counter`` seconds)."""
        times, self._token_times = self._token_times, []
        return times

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
        """The whole answer's text (what has not been received yet)."""
        return "".join([e.text async for e in self if isinstance(e, TextDelta)])

    def _translate(self, events: Sequence[EngineEvent]) -> list[GenerationEvent]:
        out: list[GenerationEvent] = []
        token_ids: list[int] = []
        for event in events:
            match event:
                case TokenEvent():
                    self.phase = "decode"
                    token_ids.append(event.token_id)
                    self._token_times.append(event.at)
                case PrefillProgress():
                    self.phase = "prefill"
                    out.append(PromptProgress(event.done, event.total))
                case TokensEnded():
                    out += self._text_of(token_ids)
                    out += self._end(event)
                    return out
                case _:
                    assert_never(event)
        out += self._text_of(token_ids)
        if self._parser.is_done:
            self._stream.stop()
        return out

    def _text_of(self, token_ids: list[int]) -> Sequence[GenerationEvent]:
        if not token_ids or self._parser.is_done:
            return []
        self._generated_tokens += len(token_ids)
        return self._parser.feed(self._decoder.feed(token_ids))

    def _end(self, ended: TokensEnded) -> list[GenerationEvent]:
        self._finished = True
        was_done = self._parser.is_done
        tail = self._parser.finish(self._decoder.finish())
        usage = Usage(
            prompt_tokens=ended.report.prompt_tokens,
            generated_tokens=self._generated_tokens,
            cached_prompt_tokens=ended.report.cached_prompt_tokens,
        )
        stopped = self._parser.stop_sequence
        reason: FinishReason = "tool_calls" if self._parser.called_tools else "stop"
        if ended.reason is EndReason.LENGTH and not was_done:
            reason = "length"
        return [*tail, Finished(reason, usage, stopped)]


@dataclass(frozen=True, slots=True)
class Service:
    """A loaded model. All methods run on the Trio thread.

    ``name`` is what clients see. ``chat_format`` is None for a base model: it can only complete.
    ``stop_ids`` are the tokens with which the model ends a text of its own accord.
    """

    name: str
    engine: Engine
    tokenizer: Tokenizer
    chat_format: ChatFormat | None
    stop_ids: frozenset[int]

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[Reply]:
        """Queue, compute and read one answer. Leaving the block, however, ends the work.

        Raises: RequestError, OverloadedError, EngineFailed, on entering.
        """
        self.engine.check_capacity()
        prompt, parser, decoder = await self._prepare(request)
        context_tokens = self.engine.context_tokens
        if len(prompt.token_ids) >= context_tokens:
            raise ContextOverflowError(len(prompt.token_ids), context_tokens)
        job = EngineRequest(
            prompt.token_ids,
            sampling=request.sampling,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_ids=frozenset() if request.ignore_eos else self.stop_ids,
        )
        async with self.engine.submit(job) as stream:
            yield Reply(stream, parser, decoder)

    def chat(
        self,
        messages: Iterable[Message | dict[str, str]],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        sampling: SamplingParams | None = None,
    ) -> AbstractAsyncContextManager[Reply]:
        """Answer a conversation. Messages may be dicts with ``role`` and ``content``."""
        turns = tuple(m if isinstance(m, Message) else _message(m) for m in messages)
        return self.generate(
            GenerationRequest(
                Conversation(turns),
                sampling=sampling or SamplingParams(),
                max_tokens=max_tokens,
                stop=tuple(stop),
            )
        )

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        sampling: SamplingParams | None = None,
    ) -> AbstractAsyncContextManager[Reply]:
        """Continue raw text, or token ids, without a chat format."""
        return self.generate(
            GenerationRequest(
                TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(tuple(prompt)),
                sampling=sampling or SamplingParams(),
                max_tokens=max_tokens,
                stop=tuple(stop),
            )
        )

    async def _prepare(
        self, request: GenerationRequest
    ) -> tuple[Prompt, OutputParser, StreamDecoder]:
        match request.prompt:
            case Conversation():
                if self.chat_format is None:
                    raise RequestError(
                        f"{self.name} has no chat template; use /v1/completions", param="messages"
                    )
                prompt = await run_off_loop(self.chat_format.render, request)
                decoder = self.tokenizer.new_decoder(visible=self.chat_format.visible_tokens)
                return prompt, self.chat_format.new_parser(request, prompt), decoder
            case TextPrompt(text):
                token_ids = await run_off_loop(self.tokenizer.encode, text)
                prompt = Prompt(text, [*self.tokenizer.bos_ids, *token_ids])
            case TokenPrompt(ids):
                prompt = Prompt("", list(ids))
            case PromptBatch():
                raise RequestError("several prompts at once are not supported", param="prompt")
            case _:
                assert_never(request.prompt)
        # Raw text goes on where the prompt stopped; a turn, unlike it, begins a text.
        decoder = self.tokenizer.new_decoder(start_of_text=False)
        return prompt, AnswerParser(request.stop), decoder


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Find, load and hold the model that ``settings`` name.

    Raises: LoadError; EngineFailed, in a group, if the worker dies while the block runs.
    """
    found = await run_off_loop(resolve_model, settings.model)
    tokenizer = await run_off_loop(load_tokenizer, found.path)
    chat = await run_off_loop(load_chat_format, found.path, tokenizer)
    async with core.open_engine(
        partial(_load, found.path, settings),
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        threads=settings.threads,
    ) as engine:
        name = settings.served_model_name or found.name
        yield Service(name, engine, tokenizer, chat.format, chat.stop_ids)


def open_engine(
    model: str | None = None, settings: Settings | None = None
) -> AbstractAsyncContextManager[Service]:
    """The engine for a Trio program: ``async with ds4trio.open_engine("name") as engine: ...``.

    ``model`` is a name, a folder, a .gguf file or a hub name; ``settings`` holds all else.
    Several may be open in one process. Raises: as `open_service`.
    """
    chosen = settings or Settings()
    return open_service(chosen if model is None else replace(chosen, model=model))


def _load(source: Path, settings: Settings) -> CausalLM:
    """Runs on: worker, which alone may touch torch."""
    from ds4trio.models.registry import load_model

    return load_model(
        source,
        dtype=settings.dtype,
        device=settings.device,
        context_tokens=settings.context_tokens,
    )


def _message(fields: dict[str, str]) -> Message:
    match fields:
        case {"role": "system" | "user" | "assistant" | "tool" as role, "content": str(content)}:
            return Message(role, content, fields.get("name"))
    raise RequestError("a message needs a role and a content", param="messages")
