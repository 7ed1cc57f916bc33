from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_chat_tool_parser import CALL, parser, read, told

from ds4trio.events import TextDelta, ThinkingDelta


def think(text: str) -> tuple[str, str]:
    return ("think", text)


F = ["f", '{"a": 1}', True]


@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        (False, "<think>\nwhy\n</think>\n\nyes", [think("why"), "yes"]),
        (False, "\n<think>why</think> yes", [think("why"), " yes"]),
        (False, "<think>\n\n</think>\n\nyes", ["yes"]),
        (False, "yes <think>no</think>", ["yes <think>no</think>"]),
        (False, "  yes", ["  yes"]),
        (False, "<thi", ["<thi"]),
        (False, "<think>", []),
        (True, "why\n</think>\n\nyes\n", [think("why"), "yes\n"]),
        (True, "\nwhy", [think("why")]),
        (True, "<think>\nwhy</think>yes", [think("why"), "yes"]),
        (True, "why</thi", [think("why</thi")]),
        (True, "why\n\n", [think("why\n\n")]),
        (True, "a\n\nb</think>yes</think>", [think("a\n\nb"), "yes</think>"]),
        # Calls in thoughts: meant if nothing comes after them.
        (True, f"why\n{CALL}", [think("why\n"), F]),
        (True, f"why\n{CALL}\n{CALL}\n", [think("why\n"), F, F]),
        (True, f"why\n{CALL}\nor not", [think(f"why\n{CALL}\nor not")]),
        (True, f"why\n{CALL}\n</think>\n", [think(f"why\n{CALL}")]),
        (True, f"why {CALL}</think>yes", [think(f"why {CALL}"), "yes"]),
        (True, f"why {CALL}</think>{CALL}", [think(f"why {CALL}"), F]),
        (True, f"why {CALL[:-20]}", [think(f"why {CALL[:-20]}")]),
        (True, "a <tool_call> is", [think("a <tool_call> is")]),
        (True, f"a <tool_call> is {CALL}", [think("a <tool_call> is "), F]),
        (True, "a <tool", [think("a <tool")]),
    ],
)
def test_thoughts_are_told_apart(opened: bool, text: str, expected: list[object]) -> None:
    assert told(read(parser(opened=opened), text)) == expected
    assert told(read(parser(opened=opened), *text)) == expected


def test_whether_the_model_thinks_is_known() -> None:
    made, thinks = parser(opened=False), []
    for text in ["", "<think", ">", "why</think", ">", "yes"]:
        made.feed(text)
        thinks.append(made.in_thinking)
    assert thinks == [False, False, True, True, False, False]
    assert parser(opened=True).in_thinking


def test_thoughts_are_told_as_they_come() -> None:
    made = parser(opened=True)
    assert made.feed("a") == [ThinkingDelta("a")]
    assert made.feed("b<") == [ThinkingDelta("b")]
    assert made.feed("</think>c") == [ThinkingDelta("<"), TextDelta("c")]


@given(thought=st.text(), answer=st.text())
def test_thoughts_and_answer_are_whole(thought: str, answer: str) -> None:
    text = f"\n{thought}\n</think>\n\n{answer}"
    events = told(read(parser(opened=True), text))
    expected: list[object] = []
    if said := thought.strip("\n"):
        expected.append(think(said))
    if answer.lstrip("\n"):
        expected.append(answer.lstrip("\n"))
    # Thoughts and answers that hold markup are other tests' matter.
    if not any(char in thought + answer for char in "<"):
        assert events == expected
