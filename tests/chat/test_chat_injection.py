"""Whatever a message holds, it stays text."""

from __future__ import annotations

import pytest
from chat_rig import (
    CONTROL,
    TYPED,
    asking,
    control_in,
    conversation,
    small_format,
    spelled,
)
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.shield import ControlShield
from ds4trio.errors import RequestError
from ds4trio.request import Message

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
