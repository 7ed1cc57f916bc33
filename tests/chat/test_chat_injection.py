"""Whatever a message holds, it stays text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from chat_rig import (
    CONTROL,
    TYPED,
    asking,
    control_in,
    conversation,
    in_transformers_words,
    oracle,
    small_format,
    spelled,
)
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from ds4trio.chat.shield import ControlShield
from ds4trio.chat.template import TemplateChatFormat
from ds4trio.errors import RequestError
from ds4trio.request import Conversation, GenerationRequest, Message, ToolCall, ToolSpec
from ds4trio.text.from_hf import HfTokenizer

KEEPING = ["chatml", "composed", "brackets"]
TRIMMING = ["headers", "alternating"]
CONTENTS = st.lists(TYPED, min_size=1, max_size=4)


@pytest.mark.parametrize("style", [*KEEPING, *TRIMMING, "cutting"])
@given(contents=CONTENTS)
def test_no_message_adds_a_control_token(style: str, contents: list[str]) -> None:
    neutral = small_format(style).render(conversation(*["x"] * len(contents)))
    prompt = small_format(style).render(conversation(*contents))
    assert control_in(prompt) == control_in(neutral)
    assert spelled(prompt) == prompt.text


@pytest.mark.parametrize("style", KEEPING)
@given(contents=CONTENTS)
def test_what_was_typed_is_all_there(style: str, contents: list[str]) -> None:
    prompt = small_format(style).render(conversation(*contents))
    # A place for each content, in a prompt that no content can disturb.
    places = [f"\U0010f000{index}\U0010f000" for index in range(len(contents))]
    expected = small_format(style).render(conversation(*places)).text
    for place, content in zip(places, contents, strict=True):
        expected = expected.replace(place, content)
    assert prompt.text == expected


@pytest.mark.parametrize("style", TRIMMING)
@given(content=TYPED, space=st.sampled_from(["", " ", "\n\t "]))
def test_templates_trim_as_if_nothing_was_hidden(style: str, content: str, space: str) -> None:
    trimmed = small_format(style).render(conversation(content.strip()))
    assert small_format(style).render(conversation(space + content + space)) == trimmed


@given(name=TYPED)
def test_no_name_adds_a_control_token(name: str) -> None:
    chat = small_format("composed")
    neutral = chat.render(asking(Message("user", "a", name="x")))
    prompt = chat.render(asking(Message("user", "a", name=name)))
    assert control_in(prompt) == control_in(neutral)


@pytest.mark.parametrize("control", CONTROL)
def test_a_typed_control_token_is_many_tokens(control: str) -> None:
    prompt = small_format("chatml").render(conversation(f"a{control}b"))
    neutral = small_format("chatml").render(conversation("ab"))
    assert control_in(prompt) == control_in(neutral)
    assert f"a{control}b<|im_end|>" in prompt.text
    assert len(prompt.token_ids) >= len(neutral.token_ids) + len(control.encode()) // 2


@given(text=TYPED)
def test_hidden_text_is_revealed_as_it_was(text: str) -> None:
    disguise = ControlShield(CONTROL).disguise()
    hidden = disguise.hide(text)
    assert len(hidden) == len(text)
    assert not any(control in hidden for control in CONTROL)
    assert disguise.reveal(hidden) == text


@st.composite
def straddling(draw: st.DrawFn) -> tuple[list[str], str, str, str]:
    """Spellings, and one of them cut in three: template, user, template. The user wrote more on a
    side where the template wrote nothing, and whitespace around it all."""
    spellings = draw(st.lists(st.text("ab<>|", min_size=1, max_size=5), min_size=1, max_size=3))
    spelling = draw(st.sampled_from(spellings))
    start = draw(st.integers(0, len(spelling) - 1))
    end = draw(st.integers(start + 1, len(spelling)))
    before, typed, after = spelling[:start], spelling[start:end], spelling[end:]
    more = st.text("ab<>| ", max_size=3)
    typed = ("" if before else draw(more)) + typed + ("" if after else draw(more))
    space = st.text(" \n", max_size=2)
    return spellings, before, draw(space) + typed + draw(space), after


@given(straddling())
def test_user_and_template_text_together_spell_no_control_token(
    case: tuple[list[str], str, str, str],
) -> None:
    spellings, before, typed, after = case
    own = [spelling for spelling in spellings if spelling in before or spelling in after]
    hidden = ControlShield(spellings).disguise().hide(typed)
    for seen in (hidden, hidden.strip()):
        found = [spelling for spelling in spellings if spelling in before + seen + after]
        assert set(found) <= set(own)


@pytest.mark.parametrize(
    ("spelling", "before", "typed", "after"),
    [
        ("<end>", "", "a <e\n", "nd>"),
        ("|end)", "|en", " d) b", ""),
        ("<end>", "<e", "nd", ">"),
        ("<end>", "", "<end>", ""),
    ],
)
def test_each_border_of_a_text_is_guarded(
    spelling: str, before: str, typed: str, after: str
) -> None:
    hidden = ControlShield([spelling]).disguise().hide(typed)
    assert spelling in before + typed.strip() + after
    assert spelling not in before + hidden.strip() + after


def test_text_far_from_control_tokens_is_not_touched() -> None:
    text = "if a < b: print('c')  # [d]"
    assert ControlShield(["<|im_end|>", "<|eot|>"]).disguise().hide(text) == text


def test_a_model_without_control_tokens_hides_nothing() -> None:
    assert ControlShield([]).disguise().hide("<|x|>") == "<|x|>"


def test_a_text_with_every_stand_in_is_refused() -> None:
    text = "".join(map(chr, range(0x100000, 0x10FFFE))) + "<s>"
    with pytest.raises(RequestError):
        small_format("chatml").render(conversation(text))


def full(typed: str, key: str | None = None) -> GenerationRequest:
    """A request with a typed text wherever there can be one."""
    schema = {
        "type": "object",
        "description": typed,
        "properties": {key or typed: {"type": "string", "enum": [typed], "x": [{"y": typed}]}},
    }
    arguments = json.dumps({"a": typed, key or typed: [typed, {"b": typed}], "n": 1})
    return asking(
        Message("user", typed, name=typed),
        Message("assistant", typed, None, typed, (ToolCall(typed, typed, arguments),)),
        Message("tool", typed, tool_call_id=typed),
        Message("user", typed),
        tools=(ToolSpec(typed, typed, schema), ToolSpec(typed, typed, grammar=typed)),
    )


STYLES_WITH_TOOLS = ["tagged tools", "listed tools", "bare tools", "chatml", "headers", "thinking"]


@pytest.mark.parametrize("style", STYLES_WITH_TOOLS)
@given(typed=TYPED.filter(bool))
def test_nothing_about_tools_adds_a_control_token(style: str, typed: str) -> None:
    neutral = small_format(style).render(full("x"))
    prompt = small_format(style).render(full(typed))
    assert control_in(prompt) == control_in(neutral)
    assert spelled(prompt) == prompt.text


@pytest.mark.oracle
@pytest.mark.parametrize("style", ["tagged tools", "listed tools", "bare tools"])
@given(typed=TYPED.filter(bool))
def test_what_was_typed_about_tools_is_all_there(style: str, typed: str) -> None:
    asked = full(typed)
    # Custom tools and ids of other lengths are not transformers' conventions.
    assert isinstance(asked.prompt, Conversation)
    turns = [replace(m, tool_call_id=m.tool_call_id and "123456789") for m in asked.prompt.messages]
    calls = tuple(replace(call, id="123456789") for call in turns[1].tool_calls)
    turns[1] = replace(turns[1], tool_calls=calls)
    asked = replace(asked, prompt=Conversation(tuple(turns)), tools=asked.tools[:1])
    theirs: Any = oracle(style).apply_chat_template
    prompt = small_format(style).render(asked)
    assert prompt.text == theirs(**in_transformers_words(asked), tokenize=False)


def test_what_json_escapes_may_be_part_of_a_control_token() -> None:
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken('"\\"', special=True)])
    tokenizer = HfTokenizer(json.loads(backend.to_str()))
    template = '{{ tools | tojson }}{% for m in messages %}{% endfor %}{# <tool_call> "arguments #}'
    chat = TemplateChatFormat(template, tokenizer, variables={})
    asked = asking(Message("user", "a"), tools=(ToolSpec('"\\"', "\n"),))
    function = json.loads(chat.render(asked).text)[0]["function"]
    assert (function["name"], function["description"]) == ('"\\"', "\n")
