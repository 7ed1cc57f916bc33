"""One model, ready to answer: tokenizer, chat format and engine together.

This is what an embedder holds and what the server serves. Knows nothing of HTTP.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ds4trio.chat.format import KnowsStructure, WritesParts
from ds4trio.chat.output import AnswerParser
from ds4trio.chat.replay import ReplayMemory
from ds4trio.constraint.blame import blamed
from ds4trio.engine.job import EndReason, EngineRequest
from ds4trio.errors import ContextOverflowError, RequestError
from ds4trio.reply import ChoicePlan, Reply
from ds4trio.request import (
    Conversation,
    GenerationRequest,
    Message,
    PromptBatch,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from ds4trio.text.halves import check_text
from ds4trio.threads import run_off_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from ds4trio.cache.disk_stats import DiskStats
    from ds4trio.chat.format import ChatFormat, OutputParser, Prompt
    from ds4trio.chat.replay import Asked
    from ds4trio.constraint.grammar import GrammarCompiler
    from ds4trio.engine.engine import Engine, Places
    from ds4trio.engine.fair_queue import Share
    from ds4trio.reply import Remember
    from ds4trio.request import OutputFormat
    from ds4trio.text.tokenizer import StreamDecoder, Tokenizer


#: Texts up to this are encoded whatever they hold: a second at worst (5 million letters took 40).
COUNTED_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class Service:
    """A loaded model. All methods run on the Trio thread.

    ``name`` is what clients see. ``chat_format`` is None for a base model: it can only complete.
    ``stop_ids`` are the tokens with which the model ends a text of its own accord. ``grammars``
    hold answers to a prescribed form. ``longest_token_bytes`` bounds what a context can hold.
    ``tokenizer_told`` is what clients must know who count tokens themselves: see `LoadedChat.told`.
    ``turns`` are what the model has said, for when it is sent back in other words.
    ``disk_stats`` are those of ``cache_dir``, if there is one.
    """

    name: str
    engine: Engine
    tokenizer: Tokenizer
    chat_format: ChatFormat | None
    stop_ids: frozenset[int]
    grammars: GrammarCompiler
    longest_token_bytes: int
    tokenizer_told: Mapping[str, str | None]
    disk_stats: DiskStats | None = None
    turns: ReplayMemory = field(default_factory=ReplayMemory)

    @asynccontextmanager
    async def generate(
        self, request: GenerationRequest, share: Share | None = None
    ) -> AsyncIterator[Reply]:
        """Queue, compute and read the answers. Leaving the block, however, ends the work.

        ``share``: for whom (None: nobody in particular), which decides when its turn comes.

        Raises: RequestError, OverloadedError, EngineFailed, on entering.
        """
        batch = request.prompt
        prompts = batch.prompts if isinstance(batch, PromptBatch) else (batch,)
        with self._places(request, len(prompts)) as places:
            owner = share.owner if share is not None else None
            prepared = [
                await self._prepare(replace(request, prompt=prompt), owner) for prompt in prompts
            ]
            jobs = [
                self._numbered(one.job if share is None else replace(one.job, share=share), answer)
                for one in prepared
                for answer in range(request.n)
            ]
            plans = [
                ChoicePlan(one.new_parser(), one.new_decoder(), answer == 0, one.echo, one.remember)
                for one in prepared
                for answer in range(request.n)
            ]
            async with self.engine.submit_all(jobs, places) as streams:
                yield Reply(streams, plans, self.tokenizer, tells_usage=request.usage_so_far)

    def _places(self, request: GenerationRequest, prompts: int) -> Places:
        """Kept before anything is spent on the request. Raises: as ``Engine.check_capacity``."""
        try:
            return self.engine.reserve(prompts * request.n)
        except RequestError as error:  # too many at once
            param = "n" if request.n > 1 else "prompt"
            raise RequestError(f"{param}: {error.message}", param=param) from None

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

    async def prompt_ids(self, request: GenerationRequest) -> Sequence[int]:
        """The request's prompt as the model would see it. Raises: RequestError."""
        if isinstance(request.prompt, Conversation):
            prompt, _ = await self._render(request, self._chat(), None)
            return prompt.token_ids
        assert isinstance(request.prompt, TextPrompt | TokenPrompt)
        return await self._raw_ids(request.prompt)

    def bare_ids(self, text: str) -> Sequence[int]:
        """A text by itself; the spelling of a control token alone is that token. Runs on: any."""
        token_id = self.tokenizer.control_tokens.get(text)
        if token_id is not None:
            return [token_id]
        self._refuse_hopeless(len(text))
        return self._encode(text)

    def texts_of(self, token_ids: Iterable[int]) -> list[str]:
        """Each token's own text (U+FFFD where it is part of a character). Runs on: any thread."""
        return [
            self.tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in token_ids
        ]

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, from a text's beginning; control tokens have none."""
        decoder = self.tokenizer.new_decoder()
        return decoder.feed(list(token_ids)) + decoder.finish()

    async def _prepare(self, request: GenerationRequest, owner: str | None) -> _Prepared:
        """One prompt's part of a request. Raises: RequestError, ContextOverflowError."""
        if isinstance(request.prompt, Conversation):
            return await self._prepare_chat(request, owner)
        assert isinstance(request.prompt, TextPrompt | TokenPrompt)
        job = self._job(request, await self._raw_ids(request.prompt))
        echo = None
        if request.echo and isinstance(request.prompt, TextPrompt):
            echo = request.prompt.text
        elif request.echo:
            echo = await run_off_loop(self.text_of, job.token_ids)
        return _Prepared(
            await self._constrained(job, request.output_format, request),
            partial(AnswerParser, request.stop),
            # Raw text goes on where the prompt stopped; a turn, unlike it, begins a text.
            partial(self.tokenizer.new_decoder, start_of_text=False),
            echo,
        )

    async def _prepare_chat(self, request: GenerationRequest, owner: str | None) -> _Prepared:
        chat = self._chat()
        prompt, asked = await self._render(request, chat, owner)
        job = self._job(request, prompt.token_ids)
        job = replace(job, stable_prefixes=prompt.stable_prefixes)
        if prompt.thinking and chat.thinking_end is not None:
            job = replace(
                job,
                thinking_end=self._markup_ids(chat.thinking_end),
                thinking_budget=request.thinking.budget_tokens,
            )
        if isinstance(chat, KnowsStructure):
            # Creative models still write calls that can be read: only what is in them is sampled.
            spans = partial(chat.new_structural_tokens, request, prompt)
            job = replace(job, new_greedy_spans=spans)
        return _Prepared(
            await self._constrained(job, chat.output_format(request), request),
            partial(chat.new_parser, request, prompt),
            partial(self.tokenizer.new_decoder, visible=chat.visible_tokens),
            remember=self._remembering(request, asked) if asked is not None else None,
        )

    def _remembering(self, request: GenerationRequest, asked: Asked) -> Remember | None:
        """What remembers whole answers; None if they do not end where the model ends them."""
        if request.ignore_eos:
            return None

        def remember(token_ids: Sequence[int], message: Message, reason: EndReason) -> None:
            # Where one call is allowed, what ends calls was not waited for.
            if request.parallel_tool_calls or reason is not EndReason.STOPPED:
                self.turns.remember(asked, token_ids, message)

        return remember

    def _chat(self) -> ChatFormat:
        if self.chat_format is None:
            raise RequestError(
                f"{self.name} has no chat template; use /v1/completions", param="messages"
            )
        return self.chat_format

    async def _render(
        self, request: GenerationRequest, chat: ChatFormat, owner: str | None
    ) -> tuple[Prompt, Asked | None]:
        """The prompt, and what must be known to remember its answer, if that can be done."""
        assert isinstance(request.prompt, Conversation)
        messages = request.prompt.messages
        self._refuse_hopeless(sum(len(message.content) for message in messages))

        def render() -> tuple[Prompt, Asked | None]:
            for message in messages:
                check_text(message.content, "messages")
                check_text(message.reasoning or "", "messages")
            if not isinstance(chat, WritesParts):
                return chat.render(request), None
            asked = self.turns.ask(request, owner, chat, self.tokenizer)
            return asked.prompt, asked

        return await run_off_loop(render)

    async def _raw_ids(self, prompt: TextPrompt | TokenPrompt) -> list[int]:
        if isinstance(prompt, TokenPrompt):
            return list(prompt.token_ids)
        self._refuse_hopeless(len(prompt.text))
        token_ids = await run_off_loop(self._encode, prompt.text)
        return [*self.tokenizer.bos_ids, *token_ids]

    def _encode(self, text: str) -> list[int]:
        check_text(text, "prompt")
        return self.tokenizer.encode(text)

    def _refuse_hopeless(self, characters: int) -> None:
        """A text that no tokens could make fit is not worth the seconds of encoding it, which
        nothing can interrupt; a short one is, for the true count.

        Raises: ContextOverflowError.
        """
        context_tokens = self.engine.context_tokens
        least = characters // self.longest_token_bytes
        if least > context_tokens and characters > COUNTED_CHARACTERS:
            raise ContextOverflowError(least, context_tokens, at_least=True)

    async def _constrained(
        self, job: EngineRequest, form: OutputFormat | None, request: GenerationRequest
    ) -> EngineRequest:
        """Raises: RequestError, naming the field, if nothing can be written in this form."""
        if form is None:
            return job
        try:
            return replace(job, constraint=await run_off_loop(self.grammars.compile, form))
        except RequestError as error:
            raise await run_off_loop(blamed, self.grammars, request, error) from None

    def _job(self, request: GenerationRequest, token_ids: Sequence[int]) -> EngineRequest:
        if request.max_tokens == 0 and not request.echo:
            raise RequestError(
                "max_tokens: 0 leaves nothing to answer; it is for echo", param="max_tokens"
            )
        context_tokens = self.engine.context_tokens
        if len(token_ids) + (request.max_tokens != 0) > context_tokens:
            raise ContextOverflowError(len(token_ids), context_tokens)
        return EngineRequest(
            token_ids,
            sampling=request.sampling,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_ids=frozenset() if request.ignore_eos else self.stop_ids,
            logprobs=request.logprobs,
            prompt_logprobs=request.echo and request.logprobs is not None,
        )

    @staticmethod
    def _numbered(job: EngineRequest, answer: int) -> EngineRequest:
        """The job of one of several answers: with one seed, each still differs."""
        seed = job.sampling.seed
        if seed is None or answer == 0:
            return job
        return replace(job, sampling=replace(job.sampling, seed=seed + answer))

    def _markup_ids(self, spelling: str) -> tuple[int, ...]:
        token_id = self.tokenizer.control_tokens.get(spelling)
        return tuple(self.tokenizer.encode(spelling)) if token_id is None else (token_id,)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What every answer to one prompt needs."""

    job: EngineRequest
    new_parser: Callable[[], OutputParser]
    new_decoder: Callable[[], StreamDecoder]
    echo: str | None = None
    remember: Remember | None = None


def _message(fields: dict[str, str]) -> Message:
    match fields:
        case {"role": "system" | "user" | "assistant" | "tool" as role, "content": str(content)}:
            return Message(role, content, fields.get("name"))
    raise RequestError("a message needs a role and a content", param="messages")
