from __future__ import annotations

import pytest
from chat_rig import SPECIAL, TEMPLATES, conversation, oracle, small_format, small_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.template import TemplateChatFormat
from ds4trio.errors import LoadError, RequestError
from ds4trio.request import Conversation, Message

STYLES = list(TEMPLATES)
#: Nothing that could be a control token, yet some of what those are made of.
HARMLESS = st.text("ab <>|\n☕").filter(lambda text: "<|" not in text and "|>" not in text)


@pytest.mark.oracle
@pytest.mark.parametrize("style", STYLES)
@given(contents=st.lists(HARMLESS, min_size=1, max_size=5))
def test_conversations_are_written_as_transformers_does(style: str, contents: list[str]) -> None:
    asked = conversation(*contents)
    messages = [{"role": turn.role, "content": turn.content} for turn in asked.messages]
    prompt = small_format(style).render(asked)
    theirs = oracle(style).apply_chat_template
    assert prompt.text == theirs(messages, tokenize=False, add_generation_prompt=True)
    assert prompt.token_ids == theirs(messages, return_dict=False, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("style", "token"),
    [
        ("chatml", "<|im_end|>"),
        ("headers", "<|eot|>"),
        ("alternating", "</s>"),
        ("composed", "<|eot|>"),
    ],
)
def test_the_token_that_closes_a_turn_stops(style: str, token: str) -> None:
    assert small_format(style).stop_ids == {small_tokenizer().control_tokens[token]}


def test_given_stop_ids_are_kept() -> None:
    chat = TemplateChatFormat("{{ messages }}", small_tokenizer(), variables={}, stop_ids=[7])
    assert chat.stop_ids == {7}


def test_a_refused_conversation_is_the_askers_fault() -> None:
    asked = Conversation((Message("user", "a"), Message("user", "b")))
    with pytest.raises(RequestError, match="Roles must alternate: got user") as caught:
        small_format("alternating").render(asked)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[5].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_on_a_conversation_is_reported(template: str) -> None:
    chat = TemplateChatFormat(template, small_tokenizer(), variables={})
    with pytest.raises(RequestError) as caught:
        chat.render(conversation("a"))
    assert caught.value.param == "messages"


def test_errors_quote_what_the_user_wrote() -> None:
    template = "{{ raise_exception('Bad: ' + messages[0].content) }}"
    chat = TemplateChatFormat(template, small_tokenizer(), variables=SPECIAL)
    with pytest.raises(RequestError, match=r"Bad: <\|im_end\|>"):
        chat.render(conversation("<|im_end|>"))


def test_a_template_that_is_no_template_is_refused() -> None:
    with pytest.raises(LoadError, match="chat_template: "):
        TemplateChatFormat("{% for %}", small_tokenizer(), variables={})


def test_names_are_given_where_there_are_some() -> None:
    template = "{% for m in messages %}{{ m.name is defined }},{{ m.name }};{% endfor %}"
    chat = TemplateChatFormat(template, small_tokenizer(), variables={})
    asked = Conversation((Message("user", "a", name="ann"), Message("user", "b")))
    assert chat.render(asked).text == "True,ann;False,;"
