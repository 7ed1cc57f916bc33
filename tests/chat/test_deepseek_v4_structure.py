"""Which characters of an answer count as structure, marked by hand."""

from __future__ import annotations

import pytest
from deepseek_v4_rig import CLOSE, OPEN, ask, chat_format, tokenizer

from ds4trio.request import Message, Thinking, ToolSpec

HI = Message("user", "Hi")
TOOL = ToolSpec("f")
HEAD = f'{OPEN}invoke name="f">\n'
#: What is between two § is structure. A character is judged by those before it: a string's last
#: quote is the model's to choose.
ANSWERS = [
    "Hi, a < b and </b>.",
    f"Hi\n\n{OPEN}tool_calls§>\n{HEAD}§",
    f"{OPEN}tool_calls§>\n{HEAD}"
    f'{OPEN}parameter name="a" string="true">§x </b> y</｜§DSML｜parameter>\n'
    f'{OPEN}parameter name="b" string="false">[1, "§a\\"b"§, {{"§k"§: true}}]{CLOSE}parameter>\n'
    f"{CLOSE}invoke>\n{HEAD}{CLOSE}invoke>\n{CLOSE}tool_calls>\n\n{OPEN}tool_calls>\n{HEAD}§",
]


def structure(text: str, *, in_block: bool = False, thinks: bool = False) -> str:
    """The text with § where structure begins and ends."""
    choice = "required" if in_block else "auto"
    request = ask(HI, tools=(TOOL,), tool_choice=choice, thinking=Thinking(enabled=thinks))
    chat = chat_format()
    tracker = chat.new_structure_tracker(request, chat.render(request))
    assert tracker is not None
    was, marked = False, ""
    for char in text:
        if tracker.is_structural != was:
            was, marked = not was, f"{marked}§"
        marked += char
        tracker.feed(char)
    return marked + ("§" if was else "")


@pytest.mark.parametrize("marked", ANSWERS)
def test_structure(marked: str) -> None:
    assert structure(marked.replace("§", "")) == marked


@pytest.mark.parametrize("marked", ANSWERS)
def test_thoughts_have_no_structure(marked: str) -> None:
    plain = marked.replace("§", "")
    assert structure(f"{plain}</think>{plain}", thinks=True) == f"{plain}</think>{marked}"


def test_calls_that_the_prompt_began() -> None:
    text = f'{HEAD}{OPEN}parameter name="a" string="true">'
    assert structure(f"{text}x", in_block=True) == f"§{text}§x"


def test_without_tools_there_is_none() -> None:
    chat = chat_format()
    for request in (ask(HI), ask(HI, tools=(TOOL,), tool_choice="none")):
        assert chat.new_structure_tracker(request, chat.render(request)) is None


@pytest.mark.parametrize("marked", ANSWERS)
def test_by_tokens(marked: str) -> None:
    """Each token is judged as its first character is."""
    text = marked.replace("§", "")
    structural, flags = False, []
    for char in marked:
        if char == "§":
            structural = not structural
        else:
            flags.append(structural)
    request = ask(HI, tools=(TOOL,), thinking=Thinking(enabled=False))
    chat = chat_format()
    spans = chat.new_structural_tokens(request, chat.render(request))
    assert spans is not None
    decoder = tokenizer().new_decoder(visible=chat.visible_tokens)
    told = ""
    for token_id in tokenizer().encode_with_control(text):
        assert spans.is_greedy == flags[len(told)]
        spans.append(token_id)
        told += decoder.feed([token_id])
    assert told == text
