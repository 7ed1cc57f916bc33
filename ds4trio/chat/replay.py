"""Turns that the model wrote, remembered as it wrote them.

A client sends a turn back in other words: its own JSON where the model wrote its markup, without
the thoughts, and text that does not always become the tokens that were sampled. Where what it sends
says the same, the prompt goes on from the very tokens of then: so it begins as what was computed
does, and as the model remembers it.

A turn is found by all that was said up to it and in it, ids of tool calls included, and by whose
conversation it is; so nobody is given another's words, and an edited turn is not found. It takes
its place only where the chat format writes it as if it were the last: one that leaves out thoughts
of earlier turns has its way. Formats that never write thoughts show them only until a user speaks.
"""

from __future__ import annotations

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ds4trio.errors import RequestError
from ds4trio.request import Conversation, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.chat.format import Prompt, WritesParts
    from ds4trio.request import GenerationRequest, ToolCall
    from ds4trio.text.tokenizer import Tokenizer

#: What is remembered of all conversations together; a token takes 4 bytes. A guess: 16 long ones.
REMEMBERED_BYTES = 32 << 20
#: Of a turn, besides its tokens and its text. A guess.
_TURN_BYTES = 1024
#: How many of a conversation's remembered turns are tried, the last first: each costs the time of
#: writing the conversation twice.
_TRIED_TURNS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """``token_ids`` are those of its prompt and its own, but for those that ``base`` has already.

    ``after``: digest of what its prompt was written as. ``hides``: its prompt holds thoughts that
    the chat format does not write.
    """

    message: Message
    after: bytes
    hides: bool
    base: Turn | None
    token_ids: array[int]

    @property
    def nbytes(self) -> int:
        message = self.message
        calls = sum(len(call.arguments) for call in message.tool_calls)
        text = len(message.content) + len(message.reasoning or "") + calls
        return _TURN_BYTES + 4 * len(self.token_ids) + 4 * text

    def all_ids(self) -> list[int]:
        """Of the prompt and of the turn."""
        pieces: list[array[int]] = []
        turn: Turn | None = self
        while turn is not None:
            pieces.append(turn.token_ids)
            turn = turn.base
        return [token_id for piece in reversed(pieces) for token_id in piece]


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, and what must be known of it to remember the answer.

    ``said`` is the key of the conversation; see `Turn` for the rest.
    """

    prompt: Prompt
    said: bytes
    after: bytes
    hides: bool = False
    base: Turn | None = None
    base_tokens: int = 0


class ReplayMemory:
    """The last turns of all conversations, within ``most_bytes``. Runs on: any thread."""

    def __init__(self, most_bytes: int = REMEMBERED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._turns: OrderedDict[bytes, Turn] = OrderedDict()
        self._keys: dict[Turn, bytes] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def ask(
        self,
        request: GenerationRequest,
        owner: str | None,
        chat: WritesParts,
        tokenizer: Tokenizer,
    ) -> Asked:
        """The prompt of a conversation, its turns as the model wrote them. Raises: RequestError."""
        assert isinstance(request.prompt, Conversation)  # raw prompts have no turns
        keys = _keys(request, owner)
        messages = list(request.prompt.messages)
        known: dict[int, Turn] = {}
        for place, message in enumerate(messages):
            turn = self._find(keys[place + 1]) if message.role == "assistant" else None
            if turn is not None and _may_stand_for(turn.message, message):
                known[place] = turn
                messages[place] = turn.message
        written = chat.write(_up_to(request, messages))
        said, after = keys[-1], _digest(written.parts)
        for place in sorted(known, reverse=True)[:_TRIED_TURNS]:
            found = _end_of(known[place], place, messages, request, chat, written.parts)
            if found is None:
                continue
            end, hides = found
            self._touch(known[place])
            before = known[place].all_ids()
            token_ids = before + tokenizer.encode_parts(written.parts[end:])
            prompt = chat.prompt(written, token_ids)
            return Asked(prompt, said, after, hides, known[place], len(before))
        return Asked(chat.prompt(written, tokenizer.encode_parts(written.parts)), said, after)

    def remember(self, asked: Asked, sampled_ids: Sequence[int], message: Message) -> None:
        """What the model answered, and what of it was told."""
        token_ids = array("I", asked.prompt.token_ids[asked.base_tokens :])
        token_ids.extend(sampled_ids)
        turn = Turn(message, asked.after, asked.hides, asked.base, token_ids)
        key = _said(asked.said, message)
        with self._lock:
            self._forget(key)
            self._turns[key] = turn
            self._keys[turn] = key
            self.nbytes += turn.nbytes
            while self.nbytes > self._most_bytes:
                self._forget(next(iter(self._turns)))

    def _find(self, key: bytes) -> Turn | None:
        with self._lock:
            return self._turns.get(key)

    def _touch(self, turn: Turn) -> None:
        """It was of use, and those before it more so: without them, going frees nothing."""
        here: Turn | None = turn
        with self._lock:
            while here is not None:
                if here in self._keys:
                    self._turns.move_to_end(self._keys[here])
                here = here.base

    def _forget(self, key: bytes) -> None:
        turn = self._turns.pop(key, None)
        if turn is not None:
            del self._keys[turn]
            self.nbytes -= turn.nbytes


def _end_of(
    turn: Turn,
    place: int,
    messages: Sequence[Message],
    request: GenerationRequest,
    chat: WritesParts,
    parts: Sequence[str | int],
) -> tuple[int, bool] | None:
    """Where in a written conversation the token that ends a turn is, and whether all up to there
    has thoughts which are not written; None if the turn may not stand there as it was."""
    is_past = any(message.role == "user" for message in messages[place + 1 :])
    if turn.hides and is_past:
        return None
    try:
        before = chat.write(_up_to(request, messages[:place])).parts
        if _digest(before) != turn.after:
            return None
        after = chat.write(_up_to(request, messages[: place + 1])).parts
    except RequestError:
        return None
    ends = [at for at, part in enumerate(after) if part in chat.stop_ids]
    if len(ends) <= sum(part in chat.stop_ids for part in before):
        return None
    end = ends[-1]
    if parts[: end + 1] != after[: end + 1]:
        return None
    hides = turn.hides or not _shows(after, before, turn.message.reasoning or "")
    return None if hides and is_past else (end, hides)


def _shows(after: Sequence[str | int], before: Sequence[str | int], reasoning: str) -> bool:
    """Whether a turn is written as what it went on from, and with its thoughts."""
    *most, last = before
    own = after[len(most) :]
    if list(after[: len(most)]) != most or not own:
        return False
    match own[0], last:
        case str(begun), str(opening) if not begun.startswith(opening):
            return False
        case begun, opening if type(begun) is not type(opening):
            return False
        case int(), int() if own[0] != last:
            return False
    return reasoning.strip() in "".join([part for part in own if isinstance(part, str)])


def _may_stand_for(known: Message, sent: Message) -> bool:
    """Thoughts may be missing, but not be others. (The key says that all else is the same.)"""
    return (sent.reasoning or "").strip() in ("", (known.reasoning or "").strip())


def _up_to(request: GenerationRequest, messages: Sequence[Message]) -> GenerationRequest:
    return replace(request, prompt=Conversation(tuple(messages)))


def _keys(request: GenerationRequest, owner: str | None) -> list[bytes]:
    """Of the conversation before its first message, and after each."""
    assert isinstance(request.prompt, Conversation)  # asked for only then
    keys = [hashlib.sha256(json.dumps(owner).encode()).digest()]
    for message in request.prompt.messages:
        keys.append(_said(keys[-1], message))
    return keys


def _said(before: bytes, message: Message) -> bytes:
    """The key of a conversation with one message more."""
    is_own = message.role == "assistant"
    fields = (
        message.role,
        message.content.strip() if is_own else message.content,
        message.name,
        [(call.id, call.name, _arguments(call)) for call in message.tool_calls],
        message.tool_call_id,
    )
    return hashlib.sha256(before + json.dumps(fields).encode()).digest()


def _arguments(call: ToolCall) -> str:
    """The same for all texts that are the same JSON."""
    try:
        return json.dumps(json.loads(call.arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return call.arguments


def _digest(parts: Sequence[str | int]) -> bytes:
    return hashlib.sha256(json.dumps(list(parts)).encode()).digest()
