"""Tools for tests of programs that use ds4trio: a model without weights, stopped at will.

A `ScriptedModel` says what a function tells it to, and a `StepGate` holds the engine's worker
inside a forward for as long as a test likes. The rest of the engine is the real one: its thread,
its batching, its cancelling::

    gate = StepGate()
    model = ScriptedModel(gate=gate)
    async with open_engine(lambda: model) as engine:
        with gate.opened_at_exit():
            async with engine.submit(EngineRequest(b"Hello")) as stream:
                await gate.reached(1)  # the worker is inside the prompt's forward
                gate.release()
                ...
        # the stream was left in the middle of an answer
    assert not model.live_states
"""

from __future__ import annotations

import codecs
import threading
import weakref
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import trio

from ds4trio.chat.format import Prompt
from ds4trio.chat.output import AnswerParser
from ds4trio.config import Settings
from ds4trio.constraint.grammar import GrammarCompiler
from ds4trio.constraint.vocabulary import Vocabulary
from ds4trio.engine.engine import open_engine
from ds4trio.models.base import TIP, Rows, StateLayout
from ds4trio.request import Conversation
from ds4trio.service import Service
from ds4trio.threads import LoopPoster

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Iterator,
        Mapping,
        Sequence,
    )

    from ds4trio.chat.format import OutputParser
    from ds4trio.models.base import Chunk
    from ds4trio.request import GenerationRequest, OutputFormat
    from ds4trio.text.tokenizer import StreamDecoder

BOS_ID = 256
END_ID = 257
VOCAB_SIZE = 258

ALPHABET = b"abcdefghijklmnopqrstuvwxyz "


class StepGate:
    """Stops the worker inside each forward until the test lets it go on.

    Forwards are numbered from 1. A new gate is shut: forward 1 stops. While a forward is held, so
    are the jobs whose blocks are being left; make sure that a failing test opens the gate
    (``opened_at_exit``).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entered = 0
        self._released = 0
        self._is_open = False
        self._waiters: list[tuple[int, LoopPoster[None]]] = []

    @property
    def entered(self) -> int:
        """Number of the forward that was begun last; 0 before any. Runs on: any."""
        return self._entered

    async def reached(self, forward: int) -> None:
        """Wait until the worker is inside this forward (or has been). Runs on: trio."""
        arrived = trio.Event()
        waiter = (forward, LoopPoster[None](lambda _: arrived.set()))
        with self._changed:
            if self._entered >= forward:
                arrived.set()
            else:
                self._waiters.append(waiter)
        try:
            await arrived.wait()
        finally:
            with self._changed:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def wait_reached(self, forward: int) -> None:
        """Like `reached`, but this whole thread waits. Runs on: any but worker."""
        with self._changed:
            self._changed.wait_for(lambda: self._entered >= forward)

    def release(self, forwards: int = 1) -> None:
        """Let so many more forwards end. Runs on: any thread."""
        with self._changed:
            self._released += forwards
            self._changed.notify_all()

    def open(self) -> None:
        """Hold nothing any more. Runs on: any thread."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def shut(self) -> None:
        """Hold the next forward to begin, and those after it. Runs on: any thread."""
        with self._changed:
            self._is_open = False
            self._released = self._entered

    @contextmanager
    def opened_at_exit(self) -> Iterator[None]:
        """However the block ends, open the gate."""
        try:
            yield
        finally:
            self.open()

    def hold(self) -> None:
        """Be a forward: blocks until released. Runs on: worker."""
        with self._changed:
            self._entered += 1
            here = self._entered
            for waiter in [w for w in self._waiters if w[0] <= here]:
                self._waiters.remove(waiter)
                waiter[1](None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open or self._released >= here)


#: Where a state's tip is kept when it is saved, in a model that has tips.
_LENGTH = f"{TIP}length"


class ScriptedState:
    """All token ids of one sequence. ``number`` counts a model's states from 0."""

    def __init__(self, number: int, *, has_tip: bool = False) -> None:
        self.number = number
        self.token_ids: list[int] = []
        self._has_tip = has_tip

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.token_ids)

    def allocate(self, tokens: int) -> None:
        """A list makes room for itself."""

    def save(self, start: int) -> dict[str, torch.Tensor]:
        """Shapes: token_ids (length - start, 1)."""
        saved = {"token_ids": torch.tensor(self.token_ids[start:], dtype=torch.int64)[:, None]}
        return saved | ({_LENGTH: torch.tensor([self.length])} if self._has_tip else {})

    def restore(self, pieces: Sequence[Mapping[str, torch.Tensor]], length: int) -> None:
        """Raises: ValueError if they are of another length."""
        for piece in pieces:
            self.token_ids += piece["token_ids"][:, 0].tolist()
        tips = [piece[_LENGTH].tolist() for piece in pieces[-1:] if self._has_tip]
        if self.length != length or tips != [[length]] * self._has_tip:
            raise ValueError("the saved state is of another length")


@dataclass(frozen=True, slots=True)
class ForwardRow:
    """What one forward computed for one sequence.

    ``sequence`` is its state's number, ``first_id`` the first token of its prompt (give each job
    its own, to tell them apart), ``position`` the number of tokens computed before.
    """

    sequence: int
    first_id: int
    position: int
    token_ids: tuple[int, ...]


def alphabet(token_ids: Sequence[int]) -> int:
    """A script: ``abc...z abc...z `` for ever, each sequence at its own place in it."""
    return ALPHABET[len(token_ids) % len(ALPHABET)]


class ScriptedModel:
    """A `CausalLM` of 258 tokens (see `ByteTokenizer`) that says what ``script`` tells it to.

    ``script`` is given all token ids of a sequence so far, and returns the next one; sampling
    settings change nothing, but if that token is forbidden (a stop id before ``min_tokens``) it is
    any other. ``logits``, if given, says instead what the model thinks of each of the 258 tokens.
    Each forward is held by ``gate`` before it computes. With ``has_tips`` its states can only be
    restored where they were saved, as DeepSeek V4's; without, anywhere, as a dense model's.

    Runs on: made anywhere, used by the worker; ``forwards`` and ``live_states`` can be read
    anywhere.
    """

    def __init__(
        self,
        script: Callable[[Sequence[int]], int] = alphabet,
        *,
        logits: Callable[[Sequence[int]], Sequence[float] | torch.Tensor] | None = None,
        gate: StepGate | None = None,
        context_tokens: int = 4096,
        vocab_size: int = VOCAB_SIZE,
        has_tips: bool = False,
    ) -> None:
        self._script = script
        self._logits = logits
        self._gate = gate
        self._states = 0
        self.vocab_size = vocab_size
        self.context_tokens = context_tokens
        self.device = torch.device("cpu")
        self.state_layout = StateLayout({"token_ids": Rows(1, 8)}, tip_bytes=8 * has_tips)
        self.forwards: list[list[ForwardRow]] = []
        """Each forward's rows, in the order of their chunks; a forward is listed as it begins."""
        self.live_states: weakref.WeakSet[ScriptedState] = weakref.WeakSet()
        """States that somebody still holds."""

    def new_state(self) -> ScriptedState:
        state = ScriptedState(self._states, has_tip=self.state_layout.tip_bytes > 0)
        self._states += 1
        self.live_states.add(state)
        return state

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        states = [_scripted(chunk) for chunk in chunks]
        pairs = list(zip(chunks, states, strict=True))
        self.forwards.append(
            [
                ForwardRow(
                    state.number,
                    (state.token_ids or chunk.token_ids)[0],
                    state.length,
                    tuple(chunk.token_ids),
                )
                for chunk, state in pairs
            ]
        )
        if self._gate is not None:
            self._gate.hold()
        rows: list[torch.Tensor] = []
        for chunk, state in pairs:
            state.token_ids.extend(chunk.token_ids)
            total = state.length
            rows += [
                self._row(state.token_ids[: total - back])
                for back in reversed(range(chunk.logit_rows))
            ]
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size)

    def _row(self, token_ids: Sequence[int]) -> torch.Tensor:
        if self._logits is not None:
            return torch.as_tensor(self._logits(token_ids), dtype=torch.float32)
        # Finite: where the scripted token is forbidden, others remain.
        row = torch.full((self.vocab_size,), -1e9)
        row[self._script(token_ids)] = 0.0
        return row

    def rows_of(self, first_id: int) -> list[list[ForwardRow]]:
        """The forwards that computed something for prompts that begin with this token: its rows."""
        found = [[row for row in rows if row.first_id == first_id] for rows in self.forwards]
        return [rows for rows in found if rows]


class ByteTokenizer:
    """A `Tokenizer`: ids 0 to 255 are bytes, 256 is ``<|bos|>`` and 257 is ``<|end|>``."""

    vocab_size = VOCAB_SIZE
    bos_ids: tuple[int, ...] = (BOS_ID,)

    @property
    def control_tokens(self) -> dict[str, int]:
        return {"<|bos|>": BOS_ID, "<|end|>": END_ID}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_with_control(self, text: str) -> list[int]:
        token_ids: list[int] = []
        while text:
            found = [(text.find(spelling), spelling) for spelling in self.control_tokens]
            at, spelling = min((f for f in found if f[0] >= 0), default=(len(text), ""))
            token_ids += text[:at].encode()
            if spelling:
                token_ids.append(self.control_tokens[spelling])
            text = text[at + len(spelling) :]
        return token_ids

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        token_ids: list[int] = []
        for part in parts:
            token_ids += [part] if isinstance(part, int) else part.encode()
        return token_ids

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if 0 <= token_id < 256 else b""

    def new_decoder(
        self, *, start_of_text: bool = True, visible: Collection[str] = ()
    ) -> StreamDecoder:
        return _ByteDecoder()


class _ByteDecoder:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: list[int]) -> str:
        return self._decoder.decode(bytes(i for i in token_ids if i < 256))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class PlainChatFormat:
    """A `ChatFormat` for `ByteTokenizer`: ``role: content`` lines, then ``assistant: ``."""

    stop_ids = frozenset({END_ID})
    visible_tokens: frozenset[str] = frozenset()
    thinking_end: str | None = None

    def render(self, request: GenerationRequest) -> Prompt:
        assert isinstance(request.prompt, Conversation)
        lines = [f"{message.role}: {message.content}\n" for message in request.prompt.messages]
        text = "".join(lines) + "assistant: "
        return Prompt(text, [BOS_ID, *text.encode()])

    def output_format(self, request: GenerationRequest) -> OutputFormat | None:
        return request.output_format

    def new_parser(self, request: GenerationRequest, prompt: Prompt) -> OutputParser:
        return AnswerParser(request.stop)


@asynccontextmanager
async def open_scripted_engine(
    model: ScriptedModel, settings: Settings | None = None
) -> AsyncIterator[Service]:
    """What ``ds4trio.open_engine`` gives, around a scripted model.

    Its texts are bytes (`ByteTokenizer`), its conversations plain lines (`PlainChatFormat`).
    """
    chosen = settings or Settings()
    chat_format, tokenizer = PlainChatFormat(), ByteTokenizer()
    grammars = GrammarCompiler(Vocabulary(tokenizer))
    async with open_engine(
        lambda: model,
        max_running=chosen.max_running,
        max_waiting=chosen.max_waiting,
        prefill_chunk_tokens=chosen.prefill_chunk_tokens,
        kv_budget_bytes=chosen.kv_budget_bytes,
        prefix_cache=chosen.prefix_cache,
        threads=chosen.threads or 1,  # tiny tensors: more would only wait for each other
    ) as engine:
        name = chosen.served_model_name or "scripted"
        told = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "chat_template": None}
        stop_ids = chat_format.stop_ids
        yield Service(name, engine, tokenizer, chat_format, stop_ids, grammars, 1, told)


def _scripted(chunk: Chunk) -> ScriptedState:
    assert isinstance(chunk.state, ScriptedState)
    return chunk.state
