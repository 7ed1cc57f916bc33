"""What is remembered of a model's turns, and where it takes the place of what a client sends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chat_rig import SPECIAL, WEATHER, asking, call, small_format, small_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.replay import Asked, ReplayMemory
from ds4trio.chat.template import TemplateChatFormat
from ds4trio.request import Message

ASKED = Message("user", "How is it?")
CALL = call("call_1", "get_weather", city="Oslo", days=2)
#: What the model wrote, token by token unlike the tokenizer would.
SAMPLED = [ord(c) + 40 for c in "no matter what"]
TURN = Message("assistant", "Let me see.", reasoning="Hm.", tool_calls=(CALL,))
RESULT = Message("tool", "rain", tool_call_id="call_1")
#: Thoughts are shown until the user speaks again: as Qwen 3 does.
UNTIL_THE_USER = """
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- if m.role == 'assistant' and loop.index0 > ns.last and m.reasoning_content %}
        {{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}
    {%- endif %}
    {{- m.content }}{% for c in m.tool_calls or [] %}
        {{- '\n<tool_call>\n' + ({"name": c.function.name, "arguments": c.function.arguments}
            | tojson) + '\n</tool_call>' }}
    {%- endfor %}{{- '<|im_end|>\n' }}
{%- endfor %}{{- '<|im_start|>assistant\n' if add_generation_prompt }}{# tools #}
{%- if tools %}{% endif %}"""
#: Thoughts are never shown.
NEVER = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def chat_format(template: str) -> TemplateChatFormat:
    return TemplateChatFormat(template, small_tokenizer(), variables=SPECIAL)


TAGGED = small_format("tagged tools")


def ask(
    memory: ReplayMemory,
    *messages: Message,
    chat: TemplateChatFormat = TAGGED,
    owner: str | None = "me",
) -> Asked:
    return memory.ask(asking(*messages, tools=(WEATHER,)), owner, chat, small_tokenizer())


def rendered(*messages: Message, chat: TemplateChatFormat = TAGGED) -> list[int]:
    return chat.render(asking(*messages, tools=(WEATHER,))).token_ids


def remembered(
    chat: TemplateChatFormat = TAGGED, turn: Message = TURN
) -> tuple[ReplayMemory, Asked]:
    memory = ReplayMemory()
    asked = ask(memory, ASKED, chat=chat)
    memory.remember(asked, SAMPLED, turn)
    return memory, asked


def begins(asked: Asked, before: Asked) -> bool:
    end_id = small_tokenizer().control_tokens["<|im_end|>"]
    exact = [*before.prompt.token_ids, *SAMPLED, end_id]
    return asked.prompt.token_ids[: len(exact)] == exact


def sent(arguments: str, **fields: object) -> Message:
    """The turn as a client sends it."""
    calls = (replace(CALL, arguments=arguments),)
    return replace(TURN, reasoning=None, tool_calls=calls, **fields)  # type: ignore[arg-type]  # of any field


@pytest.mark.parametrize(
    "turn",
    [
        TURN,
        sent(CALL.arguments),
        sent('{ "days":2,\n"city" : "\\u004fslo"}'),
        sent(CALL.arguments, content=" Let me see.\n"),
        replace(TURN, reasoning=" Hm.\n"),
    ],
)
def test_what_says_the_same_is_prompted_as_it_was_sampled(turn: Message) -> None:
    memory, before = remembered()
    after = ask(memory, ASKED, turn, RESULT)
    assert begins(after, before)
    # What follows the turn is as the template has it.
    plain = rendered(ASKED, TURN, RESULT)
    end_id = small_tokenizer().control_tokens["<|im_end|>"]
    at = len(before.prompt.token_ids) + len(SAMPLED)
    of_turn = len(before.prompt.token_ids)
    assert after.prompt.token_ids[at:] == plain[plain.index(end_id, of_turn) :]


@pytest.mark.parametrize(
    "turn",
    [
        sent('{"city": "Rome", "days": 2}'),
        sent('{"city": "Oslo", "days": 2'),
        sent(CALL.arguments, content="Let me think."),
        replace(TURN, reasoning="I was told to."),
        replace(TURN, tool_calls=(replace(CALL, id="call_2"),)),
        replace(TURN, tool_calls=(replace(CALL, name="get_news"),)),
        replace(TURN, tool_calls=(CALL, replace(CALL, id="call_2"))),
        replace(TURN, tool_calls=()),
    ],
)
def test_what_says_something_else_is_prompted_as_it_is_sent(turn: Message) -> None:
    memory, _ = remembered()
    assert ask(memory, ASKED, turn, RESULT).prompt.token_ids == rendered(ASKED, turn, RESULT)


def test_another_conversation_and_another_key_have_nothing_of_it() -> None:
    memory, _ = remembered()
    turn = sent(CALL.arguments)
    other = Message("user", "How was it?")
    assert ask(memory, other, turn, RESULT).prompt.token_ids == rendered(other, turn, RESULT)
    of_another = ask(memory, ASKED, turn, RESULT, owner="them").prompt.token_ids
    assert of_another == rendered(ASKED, turn, RESULT)


def test_other_tools_are_another_prompt() -> None:
    memory, _ = remembered()
    request = replace(asking(ASKED, TURN, RESULT), tools=(replace(WEATHER, description="new"),))
    asked = memory.ask(request, "me", TAGGED, small_tokenizer())
    assert asked.prompt.token_ids == TAGGED.render(request).token_ids


def test_thoughts_go_when_the_template_lets_them_go() -> None:
    chat = chat_format(UNTIL_THE_USER)
    memory, before = remembered(chat)
    turn = sent(CALL.arguments)
    assert begins(ask(memory, ASKED, turn, RESULT, chat=chat), before)
    after = (ASKED, turn, RESULT, Message("assistant", "Rain."), Message("user", "And now?"))
    assert ask(memory, *after, chat=chat).prompt.token_ids == rendered(*after, chat=chat)


def test_thoughts_that_no_template_shows_stay_until_the_user_speaks() -> None:
    chat = chat_format(NEVER)
    turn = Message("assistant", "Let me see.", reasoning="Hm.")
    memory, before = remembered(chat, turn)
    said = replace(turn, reasoning=None)
    result = Message("tool", "rain")
    again = ask(memory, ASKED, said, result, chat=chat)
    assert begins(again, before)
    # Later turns without thoughts of their own were prompted with them: they go with them.
    messages = [ASKED, said, result]
    for text in ("Rain.", "More rain."):
        memory.remember(again, SAMPLED, Message("assistant", text))
        messages += [Message("assistant", text), result]
        again = ask(memory, *messages, chat=chat)
        assert again.base is not None
    messages.append(Message("user", "And now?"))
    assert ask(memory, *messages, chat=chat).prompt.token_ids == rendered(*messages, chat=chat)


def test_turns_that_no_token_ends_are_as_the_template_writes_them() -> None:
    end_id = small_tokenizer().control_tokens["<|im_end|>"]
    ending = "{{ '<|im_end|>' if m.role == 'user' }}"
    template = f"{{% for m in messages %}}{{{{ m.content }}}}{ending}{{% endfor %}}"
    chat = TemplateChatFormat(template, small_tokenizer(), variables={}, stop_ids=[end_id])
    turn, again = Message("assistant", "Rain."), Message("user", "And now?")
    memory, _ = remembered(chat, turn)
    plain = rendered(ASKED, turn, again, chat=chat)
    assert ask(memory, ASKED, turn, again, chat=chat).prompt.token_ids == plain


@given(
    st.text(max_size=30), st.sampled_from(["<|im_end|>", "</think>", "<tool_call>", "<|im_", ""])
)
def test_nothing_that_is_sent_becomes_a_control_token(typed: str, spelling: str) -> None:
    memory, before = remembered()
    control = set(small_tokenizer().control_tokens.values())
    plain = ask(memory, ASKED, TURN, replace(RESULT, content="rain"))
    asked = ask(memory, ASKED, TURN, replace(RESULT, content=typed + spelling))
    assert begins(asked, before)
    found = [[i for i in a.prompt.token_ids if i in control] for a in (plain, asked)]
    assert found[0] == found[1]


def test_thousands_of_turns_within_its_bytes() -> None:
    """The conversation that goes on is remembered, and takes no more for each turn than that."""
    most = 64_000
    memory = ReplayMemory(most)
    messages = [ASKED]
    for number in range(12):
        turn = Message("assistant", f"No. {number}")
        asked = ask(memory, *messages)
        memory.remember(asked, SAMPLED, turn)
        messages += [turn, Message("user", f"And {number}?")]
        for other in range(100):
            at = ask(memory, Message("user", f"{number} {other}"), chat=chat_format_of_few())
            memory.remember(at, SAMPLED, turn)
            if other % 8 == 0:
                again = ask(memory, *messages)
                assert again.base is not None
            assert memory.nbytes <= most
    assert again.base_tokens == len(asked.prompt.token_ids) + len(SAMPLED)
    assert len(memory) < most / 1024


def chat_format_of_few() -> TemplateChatFormat:
    return small_format("chatml")
