"""Conversations with tools, in each protocol: from the second turn on, nearly all of a prompt comes
from the cache, whatever the client does to what the model wrote."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import deepseek_v4_rig
import pytest
from chat_rig import TEMPLATES, small_tokenizer
from conversing import TALKS, ChatTalk, Talk
from tiny_llama import write_tiny_llama

import ds4trio
from ds4trio.chat.format import WritesParts
from ds4trio.chat.template import TemplateChatFormat
from ds4trio.config import Settings
from ds4trio.constraint.grammar import GrammarCompiler
from ds4trio.constraint.vocabulary import Vocabulary
from ds4trio.protocols.table import PROTOCOLS
from ds4trio.testing import ScriptedModel, open_scripted_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from ds4trio.chat.format import ChatFormat
    from ds4trio.service import Service
    from ds4trio.text.tokenizer import Tokenizer

SYSTEM = "You know the weather of every city, and you look it up before you speak of it. " * 15
TURNS = 10
#: Of finitely many answers.
CHOOSE = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@dataclass
class Family:
    """How a model's answers look. ``opener`` is what its turn begins with."""

    tokenizer: Tokenizer
    chat: ChatFormat
    opener: tuple[str, str]
    call: str
    said: str
    has_tips: bool = False

    def sampled(self, text: str) -> list[int]:
        """Letter by letter, which no tokenizer would: so they do not come again of the text."""
        ids, rest = [], text
        control = self.tokenizer.control_tokens
        while rest:
            spelling = next((s for s in control if rest.startswith(s)), None)
            ids += [control[spelling]] if spelling else self.tokenizer.encode(rest[0])
            rest = rest[len(spelling or rest[0]) :]
        return ids


def tagged() -> Family:
    tokenizer = small_tokenizer()
    chat = TemplateChatFormat(TEMPLATES["tagged tools"], tokenizer, variables={"eos_token": "</s>"})
    call = (
        "<think>\nOf {n} I know nothing.\n</think>\n\nLet me see.\n<tool_call>\n"
        '{{"name":"get_weather",  "arguments": {{"city": "Oslo", "days":{n}}}}}\n</tool_call>'
    )
    said = "<think>\nNow I know {n}.\n</think>\n\nIt rains {n} days."
    return Family(tokenizer, chat, ("<|im_start|>", "assistant\n"), call, said)


def deepseek_v4() -> Family:
    chat, tokenizer = deepseek_v4_rig.chat_format(), deepseek_v4_rig.tokenizer()
    opening, closing = "<｜DSML｜", "</｜DSML｜"
    call = (
        "Of {n} I know nothing.</think>Let me see.\n\n"
        f'{opening}tool_calls>\n{opening}invoke name="get_weather">\n'
        f'{opening}parameter name="days" string="false"> {{n}}{closing}parameter>\n'
        f'{opening}parameter name="city" string="true">Oslo{closing}parameter>\n'
        f"{closing}invoke>\n{closing}tool_calls>"
    )
    said = "Now I know {n}.</think>It rains {n} days."
    return Family(tokenizer, chat, ("<｜Assistant｜>", "<think>"), call, said, has_tips=True)


class Speaker:
    """Says ``text`` after the prompt."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.text = ""
        control, rest = family.opener
        self._opener = family.tokenizer.control_tokens[control]
        self._rest = len(family.tokenizer.encode_with_control(rest))
        (self._end, *_) = family.chat.stop_ids
        self._sampled = cache(family.sampled)

    def __call__(self, token_ids: Sequence[int]) -> int:
        at = next(i for i in reversed(range(len(token_ids))) if token_ids[i] == self._opener)
        told = len(token_ids) - at - 1 - self._rest
        answer = self._sampled(self.text)
        return answer[told] if 0 <= told < len(answer) else self._end


@dataclass
class Bench:
    family: Family
    speaker: Speaker
    service: Service
    model: ScriptedModel

    async def turn(self, talk: Talk, number: int, *, thoughts: bool = False) -> None:
        """A call and its result, twice; then an answer, and what the user says to it."""
        calls_tool = number % 3 != 2
        self.speaker.text = (self.family.call if calls_tool else self.family.said).format(n=number)
        body = await talk.ask()
        calls = talk.take(body, thoughts=thoughts)
        assert len(calls) == calls_tool, body
        for call in calls:
            talk.result(call, f"rain, {number}")
        if not calls:
            talk.say(f"And {number}?")


@asynccontextmanager
async def bench(family: Family) -> AsyncIterator[Bench]:
    speaker = Speaker(family)
    model = ScriptedModel(
        speaker,
        vocab_size=family.tokenizer.vocab_size,
        context_tokens=1 << 16,
        has_tips=family.has_tips,
    )
    visible = family.chat.visible_tokens
    vocabulary = Vocabulary(family.tokenizer, visible)
    async with open_scripted_engine(model, Settings(prefill_chunk_tokens=512)) as scripted:
        service = replace(
            scripted,
            tokenizer=family.tokenizer,
            chat_format=family.chat,
            stop_ids=family.chat.stop_ids,
            grammars=GrammarCompiler(vocabulary),
        )
        yield Bench(family, speaker, service, model)


every_family = pytest.mark.parametrize("family", [tagged, deepseek_v4])
every_protocol = pytest.mark.parametrize("protocol", TALKS)


@every_family
@every_protocol
async def test_ten_turns_with_tools(family: Callable[[], Family], protocol: type[Talk]) -> None:
    async with bench(family()) as at:
        talk = protocol(at.service, SYSTEM, "somebody")
        talk.say("How is it in Oslo?")
        for number in range(TURNS):
            # Clients that keep the thoughts send them back unlike they were; others lose them.
            await at.turn(talk, number, thoughts=number % 2 == 0)
            prompt, cached = talk.usage
            assert number == 0 or cached >= 0.95 * prompt


async def begun(at: Bench, protocol: type[Talk], turns: int = 3) -> Talk:
    talk = protocol(at.service, SYSTEM, "somebody")
    talk.say("How is it in Oslo?")
    for number in range(turns):
        await at.turn(talk, number)
    return talk


@every_family
@every_protocol
async def test_again_otherwise_and_from_another(
    family: Callable[[], Family], protocol: type[Talk]
) -> None:
    """An exact repeat, an answer otherwise, an edited last turn, and another session that begins
    alike."""
    async with bench(family()) as at:
        talk = await begun(at, protocol)
        at.speaker.text = at.family.said.format(n=7)
        for _ in range(2):
            await talk.ask()
        prompt, cached = talk.usage
        assert cached == prompt - 1
        at.speaker.text = at.family.said.format(n=8)
        await talk.ask()
        assert talk.usage == (prompt, prompt - 1)
        talk.items.pop()
        talk.say("No, in Rome?")
        await talk.ask()
        prompt, cached = talk.usage
        assert cached >= 0.95 * prompt
        other = protocol(at.service, SYSTEM, "somebody else")
        other.say("And in Rome?")
        await other.ask()
        prompt, cached = other.usage
        assert cached >= 0.95 * prompt


@every_family
@every_protocol
async def test_an_edited_call_is_prompted_as_it_was_edited(
    family: Callable[[], Family], protocol: type[Talk]
) -> None:
    async with bench(family()) as at:
        talk = await begun(at, protocol, 1)
        edited = json.loads(json.dumps(talk.items).replace("Oslo", "Rome"))
        at.speaker.text = at.family.said.format(n=1)
        parsed = PROTOCOLS[talk.path].parse(json.dumps(talk.fields()).encode(), "m")
        talk.items[1:] = edited[1:]
        changed = PROTOCOLS[talk.path].parse(json.dumps(talk.fields()).encode(), "m")
        chat, tokenizer = at.family.chat, at.family.tokenizer
        assert isinstance(chat, WritesParts)
        was = at.service.turns.ask(parsed.generation, "somebody", chat, tokenizer)
        assert was.prompt.token_ids != chat.render(parsed.generation).token_ids
        now = at.service.turns.ask(changed.generation, "somebody", chat, tokenizer)
        assert now.prompt == chat.render(changed.generation)
        assert "Rome" in now.prompt.text
        of_another = at.service.turns.ask(parsed.generation, "somebody else", chat, tokenizer)
        assert of_another.prompt == chat.render(parsed.generation)
        body = await talk.ask()
        assert "It rains 1 days." in json.dumps(body)


async def test_ten_turns_with_a_real_model(tmp_path: Path) -> None:
    model = str(write_tiny_llama(tmp_path / "model"))
    async with ds4trio.open_engine(model, Settings(threads=1)) as service:
        talk = ChatTalk(service, SYSTEM)
        end_id = service.tokenizer.control_tokens["<|im_end|>"]
        # Weights that nobody trained end no turn, unless they are made to where they may.
        talk.settings = {"temperature": 0, "tool_choice": "required", "logit_bias": {end_id: 100}}
        talk.say("How is it in Oslo?")
        for number in range(TURNS):
            talk.settings["tools"] = [{"type": "function", "function": CHOOSE}]
            calls = talk.take(await talk.ask(), thoughts=False)
            prompt, cached = talk.usage
            assert number == 0 or cached >= 0.95 * prompt
            assert [call["name"] for call in calls] == ["get_weather"]
            talk.result(calls[0], "rain")
