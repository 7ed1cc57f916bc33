"""Answers of DeepSeek V4: thoughts, text and DSML. The recipe's stream processor is the oracle for
what is valid; what is not is written out by hand."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import deepseek_recipe as recipe
import pytest
from deepseek_v4_rig import CLOSE, OPEN, TEXTS, VALUES, ask, chat_format, tokenizer
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ds4trio.events import (
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
)
from ds4trio.request import GenerationRequest, Message, Thinking, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ds4trio.chat.format import ParsedEvent

TOOLS = (
    ToolSpec("f", parameters={"type": "object", "properties": {"n": {"type": "number"}}}),
    ToolSpec("patch", grammar=""),
)
SILENT = Thinking(enabled=False)
Call = tuple[str, str, bool]


def call(name: str, *parameters: tuple[str, bool, str]) -> str:
    written = [
        f'{OPEN}parameter name="{key}" string="{str(is_string).lower()}">{value}{CLOSE}parameter>\n'
        for key, is_string, value in parameters
    ]
    return f'{OPEN}invoke name="{name}">\n{"".join(written)}{CLOSE}invoke>\n'


def block(*calls: str) -> str:
    return f"{OPEN}tool_calls>\n{''.join(calls)}{CLOSE}tool_calls>"


ONE = block(call("f", ("a", True, "1")))


class Answer:
    """What events tell: thoughts, text, and each call's name, arguments and whether it is whole."""

    def __init__(self, events: Iterable[ParsedEvent]) -> None:
        self.thoughts = self.text = ""
        self.calls: list[Call] = []
        for event in events:
            match event:
                case ThinkingDelta():
                    self.thoughts += event.text
                case TextDelta():
                    self.text += event.text
                case ToolCallStarted():
                    assert event.index == len(self.calls)
                    self.calls.append((event.name, "", False))
                case ToolArgumentsDelta() | ToolCallEnded():
                    assert event.index == len(self.calls) - 1
                    name, arguments, whole = self.calls[-1]
                    assert not whole
                    if isinstance(event, ToolCallEnded):
                        self.calls[-1] = (name, arguments, True)
                    else:
                        assert event.text
                        self.calls[-1] = (name, arguments + event.text, False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return repr(vars(self))


def read(request: GenerationRequest, pieces: Sequence[str]) -> Answer:
    chat = chat_format()
    parser = chat.new_parser(request, chat.render(request))
    events = [event for piece in pieces for event in parser.feed(piece)]
    answer = Answer([*events, *parser.finish()])
    assert parser.called_tools == bool(answer.calls)
    return answer


def parsed(text: str, request: GenerationRequest | None = None) -> Answer:
    """Read at once, and character by character: the same."""
    request = request or ask(Message("user", "Hi"), tools=TOOLS, thinking=SILENT)
    whole = read(request, [text])
    assert read(request, list(text)) == whole
    return whole


def official(text: str, *, thinking: bool = False, starts_in_calls: bool = False) -> Answer:
    """What the recipe's stream processor makes of it."""
    conversation = recipe.Conversation([recipe.UserMessage("Hi")], thinking_mode=thinking)
    request = recipe.ConversationRequest(conversation, recipe.ModelVersion.DeepseekV4Pro)
    stage = recipe.ThinkingInitialStage.ReasoningStart if thinking else None
    processor = recipe.StreamProcessor(
        recipe.ChatCompletionRequest.chunk_generator(request, "id", "model"),
        recipe.ParsingOptions(thinking_initial_stage=stage, starts_in_tool_calls=starts_in_calls),
    )
    response = recipe.ChatCompletionResponse("id", "model", 0, 0, 0)
    end = recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)
    for chunk in (recipe.InferenceChunk.ready(), recipe.InferenceChunk.text(text), end):
        for told in processor.push(chunk):
            assert isinstance(told, recipe.ChatCompletionChunk)
            response.accumulate(told)
    message = json.loads(response.to_json())["choices"][0]["message"]
    answer = Answer([])
    answer.thoughts = message.get("reasoning_content") or ""
    answer.text = message["content"] or ""
    answer.calls = [
        (made["function"]["name"], made["function"]["arguments"], True)
        for made in message.get("tool_calls") or ()
    ]
    return answer


# ---- valid answers

#: A value can't hold what ends it; the recipe's ends with less.
RAW = TEXTS.filter(lambda text: CLOSE not in text + OPEN)
#: The recipe's own end at a space and are not escaped: its JSON is broken then.
ATTRIBUTES = st.text(
    st.characters(exclude_characters='"<>\\', exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]),
    max_size=8,
)
PARAMETERS = st.lists(
    st.one_of(
        st.tuples(ATTRIBUTES, st.just(True), RAW),
        st.tuples(
            ATTRIBUTES, st.just(False), VALUES.map(json.dumps).filter(lambda t: CLOSE not in t)
        ),
    ),
    max_size=3,
    unique_by=lambda parameter: parameter[0],
)
NAMES = st.from_regex(r"[a-z_][\w.-]{0,12}", fullmatch=True)
CALLS = st.lists(
    st.builds(lambda name, ps: call(name, *ps), NAMES, PARAMETERS), min_size=1, max_size=3
)
SAYINGS = TEXTS.filter(lambda text: "DSML" not in text and "think>" not in text)


@pytest.mark.oracle
@settings(max_examples=200, deadline=None)
@given(st.booleans(), SAYINGS, SAYINGS, st.none() | CALLS.map(lambda calls: block(*calls)))
def test_valid_answers_are_read_as_the_recipe_reads_them(
    thinking: bool, thoughts: str, text: str, calls: str | None
) -> None:
    # After a "<", which may begin its mark, the recipe leaves one of two line breaks standing.
    assume(not re.search(r"<\n\n+$", thoughts))
    answer = text if calls is None else f"{text}\n\n{calls}"
    if thinking:
        answer = f"{thoughts}</think>{answer}"
    request = ask(Message("user", "Hi"), tools=TOOLS, thinking=Thinking(enabled=thinking))
    mine = parsed(answer, request)
    assert mine == official(answer, thinking=thinking)
    for _, arguments, _ in mine.calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.oracle
@settings(max_examples=100, deadline=None)
@given(CALLS)
def test_calls_that_the_prompt_began(calls: list[str]) -> None:
    request = ask(Message("user", "Hi"), tools=TOOLS, tool_choice="required", thinking=SILENT)
    answer = f"{''.join(calls)}{CLOSE}tool_calls>"
    assert parsed(answer, request) == official(answer, starts_in_calls=True)


SNIPPETS = [
    *("\n", "\n\n", " ", "<", "</", "a", '"', "'", ">", "=", "é🙂", "</think>", "<think>", "\0"),
    *(f"{OPEN}tool_calls>", f"{CLOSE}tool_calls>", f'{OPEN}invoke name="f">', f"{CLOSE}invoke>"),
    *(f'{OPEN}parameter name="a" string="true">', f'{OPEN}parameter name="n" string="false">'),
    *(f"{CLOSE}parameter>", "12", "{", "<tool_calls>", '<invoke name="f">', "</invoke>", "｜", "|"),
    *("DSML", 'name="x"', "STOP", "ST", "OP", ONE),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(SNIPPETS), max_size=14), st.booleans(), st.data())
def test_any_chunking_of_anything_is_read_the_same(
    snippets: list[str], thinking: bool, data: st.DataObject
) -> None:
    text = "".join(snippets)
    switch = Thinking(enabled=thinking)
    request = ask(Message("user", "Hi"), tools=TOOLS, thinking=switch, stop=("STOP",))
    whole = parsed(text, request)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(request, pieces) == whole
    for name, arguments, is_whole in whole.calls:
        assert name == "f"
        if is_whole:
            json.loads(arguments)


@given(st.integers(0, len(ONE)))
def test_a_block_that_is_cut_off(end: int) -> None:
    answer = parsed(f"Hi\n\n{ONE[:end]}")
    if answer.calls:
        ((name, arguments, whole),) = answer.calls
        assert (name, answer.text) == ("f", "Hi")
        assert '{"a": "1"}'.startswith(arguments)
        assert whole == (f"{CLOSE}invoke>" in ONE[:end])
    else:
        assert answer.text == f"Hi\n\n{ONE[:end]}"


def test_tokens_of_an_answer() -> None:
    """Emoji and tags split over tokens, one token at a time."""
    chat, vocabulary = chat_format(), tokenizer()
    request = ask(Message("user", "Hi"), tools=TOOLS)
    text = f"Hm 🙂</think>é\n\n{block(call('f', ('a', True, '🙂</x>')))}"
    decoder = vocabulary.new_decoder(visible=chat.visible_tokens)
    parser = chat.new_parser(request, chat.render(request))
    events: list[ParsedEvent] = []
    for token_id in vocabulary.encode_with_control(text):
        events += parser.feed(decoder.feed([token_id]))
    answer = Answer([*events, *parser.finish(decoder.finish())])
    assert answer.thoughts == "Hm 🙂"
    assert answer.text == "é"
    assert answer.calls == [("f", '{"a": "🙂</x>"}', True)]


def test_arguments_come_as_they_are_written() -> None:
    chat = chat_format()
    request = ask(Message("user", "Hi"), tools=TOOLS, thinking=SILENT)
    parser = chat.new_parser(request, chat.render(request))
    assert parser.feed(f'{OPEN}tool_calls>\n{OPEN}invoke name="f">\n') == [
        ToolCallStarted(0, "call_0", "f")
    ]
    assert parser.feed(f'{OPEN}parameter name="a" string="true">x"') == [
        ToolArgumentsDelta(0, '{"a": "x\\"')
    ]
    assert parser.feed("\ny<") == [ToolArgumentsDelta(0, "\\ny")]
    assert parser.feed("/") == []
    assert parser.feed("z") == [ToolArgumentsDelta(0, "</z")]


# ---- answers that are not valid, or not quite


def whole(*calls: tuple[str, str]) -> list[Call]:
    return [(name, arguments, True) for name, arguments in calls]


A1 = whole(("f", '{"a": "1"}'))


@pytest.mark.parametrize(
    "text",
    [
        ONE.replace('name="a" string="true"', 'string="true" name="a"'),
        ONE.replace('"', "'"),
        ONE.replace('="', "=“").replace('">', "”>").replace('" ', "” "),
        ONE.replace(" name=", "  name = ").replace("invoke>", "invoke >"),
        ONE.replace("｜DSML｜", "｜｜DSML｜｜"),
        ONE.replace("｜DSML｜", "|DSML|"),
        ONE.replace("｜DSML｜", "DSML｜"),
        ONE.replace("｜DSML｜", ""),
        ONE.replace(f"{CLOSE}invoke>\n", ""),
        ONE.removesuffix(f"{CLOSE}tool_calls>"),
        ONE.removeprefix(f"{OPEN}tool_calls>\n"),
        ONE.replace(' string="true"', ""),
        f"{ONE}\nThen this.",
        f"{ONE}{CLOSE}tool_calls>",
    ],
    ids=[
        *("swapped", "single quotes", "smart quotes", "spaces", "doubled bars", "ASCII bars"),
        *("short", "plain", "call not closed", "block not closed", "block not opened"),
        *("string not said", "text after", "closed twice"),
    ],
)
def test_slips_that_are_let(text: str) -> None:
    answer = parsed(text)
    assert (answer.text, answer.calls) == ("", A1)


@pytest.mark.parametrize(
    "text",
    [
        ONE.replace("invoke name", "invoke xname"),
        ONE.replace('"f"', '""'),
        f"See {OPEN}tool_calls> for calls.",
        f"{OPEN}tool_calls>\nf(1)\n{CLOSE}tool_calls>",
        f"It ends with {CLOSE}tool_calls>.",
        f"{CLOSE}invoke>",
        "A <tool_calls> of <invoke",
        '<invoke name="f"></invoke>',
        ONE.replace("DSML", "DSM"),
        ONE.replace('name="f">', 'name="f"'),
        "a < b </ c <｜ d",
        "a\n\n",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    answer = parsed(text)
    assert (answer.text, answer.calls) == (text, [])


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("NaN", '"NaN"'),
        ("Infinity", '"Infinity"'),
        ("[1,]", '"[1,]"'),
        ("{'a': 1}", "\"{'a': 1}\""),
        ('"half', '"\\"half"'),
        ("", '""'),
        (" [1,\n 2] ", "[1,\n 2]"),
        ("[" * 100_000, json.dumps("[" * 100_000)),
    ],
)
def test_json_that_is_none_is_text(value: str, told: str) -> None:
    answer = read(
        ask(Message("user", "Hi"), tools=TOOLS, thinking=SILENT),
        [block(call("f", ("n", False, value)))],
    )
    assert answer.calls == whole(("f", f'{{"n": {told}}}'))
    json.loads(answer.calls[0][1]) if len(value) < 1000 else None


def test_a_parameter_of_which_nothing_is_said_is_what_the_tool_wants() -> None:
    text = block(call("f", ("n", True, "1"), ("a", True, "1"))).replace(' string="true"', "")
    assert parsed(text).calls == whole(("f", '{"n": 1, "a": "1"}'))


def test_a_parameter_without_a_name_shows_what_stood_there() -> None:
    text = ONE.replace("parameter name", "parameter xname")
    ((_, arguments, _),) = parsed(text).calls
    assert json.loads(arguments) == {'xname="a" string="true"': "1"}


def test_of_parameters_with_one_name_the_first_counts() -> None:
    text = block(call("f", ("a", True, "1"), ("a", False, "2"), ("b", True, "3")))
    assert parsed(text).calls == whole(("f", '{"a": "1", "b": "3"}'))


def test_a_value_ends_with_the_first_end_tag() -> None:
    inner = f'{OPEN}parameter name="x" string="true">1{CLOSE}parameter>'
    text = block(call("f", ("a", True, inner), ("b", True, "2")))
    assert json.loads(parsed(text).calls[0][1]) == {
        "a": f'{OPEN}parameter name="x" string="true">1',
        "b": "2",
    }


def test_calls_that_run_into_each_other() -> None:
    text = block(call("f", ("a", True, "1"))[: -len(f"{CLOSE}invoke>\n")], call("g"))
    assert parsed(text).calls == whole(("f", '{"a": "1"}'), ("g", "{}"))


@pytest.mark.parametrize("between", ["", "\n", "\n\n", " "])
def test_two_blocks(between: str) -> None:
    assert parsed(f"{ONE}{between}{block(call('g'))}").calls == [*A1, ("g", "{}", True)]


def test_an_empty_block_is_nothing() -> None:
    answer = parsed(f"Hi\n\n{block()}\n\nyou")
    assert (answer.text, answer.calls) == ("Hiyou", [])


@pytest.mark.parametrize("between", ["", "\n", " ", "\n\n"])
def test_text_before_a_block(between: str) -> None:
    answer = parsed(f"Hi{between}{ONE}")
    assert (answer.text, answer.calls) == ("Hi" + between.strip("\n"), A1)


@pytest.mark.parametrize("name", ["shipping address", " string= mode ", "", "a\\b", "é", "a='b'"])
def test_names_of_parameters(name: str) -> None:
    ((_, arguments, _),) = parsed(block(call("f", (name, True, "x"), ("z", False, "1")))).calls
    assert json.loads(arguments) == {name: "x", "z": 1}


def test_a_custom_tools_input_is_plain() -> None:
    lines = '*** Begin Patch\n-a < b && "c"</x>\n+</y\n'
    assert parsed(block(call("patch", ("input", True, lines)))).calls == whole(("patch", lines))
    quoted = block(call("patch", ("why", True, "so"), ("input", False, json.dumps(lines))))
    assert parsed(quoted).calls == whole(("patch", lines))
    assert parsed(block(call("patch"))).calls == whole(("patch", ""))


@pytest.mark.parametrize(
    "request_",
    [
        ask(Message("user", "Hi"), thinking=SILENT),
        ask(Message("user", "Hi"), thinking=SILENT, tools=TOOLS, tool_choice="none"),
    ],
)
def test_without_tools_calls_are_text(request_: GenerationRequest) -> None:
    answer = parsed(f"Hi\n\n{ONE}", request_)
    assert (answer.text, answer.calls) == (f"Hi\n\n{ONE}", [])


def test_the_answer_is_over_with_what_follows_calls() -> None:
    chat = chat_format()
    request = ask(Message("user", "Hi"), tools=TOOLS, thinking=SILENT)
    parser = chat.new_parser(request, chat.render(request))
    parser.feed(f"{ONE}\n")
    assert not parser.is_done
    assert not parser.feed("Now")
    assert parser.is_done


def test_the_one_call_that_is_allowed() -> None:
    request = ask(Message("user", "Hi"), tools=TOOLS, thinking=SILENT, parallel_tool_calls=False)
    assert parsed(block(call("f"), call("g")), request).calls == whole(("f", "{}"))


# ---- thoughts


def thought(text: str, **fields: object) -> Answer:
    return parsed(text, ask(Message("user", "Hi"), tools=TOOLS, **fields))


def test_calls_in_thoughts_that_were_not_ended_are_made() -> None:
    answer = thought(f"So: {ONE}")
    assert (answer.thoughts, answer.text, answer.calls) == ("So: ", "", A1)


def test_calls_that_were_thought_of_are_not_made() -> None:
    answer = thought(f"Not {ONE} yet</think>No.")
    assert (answer.thoughts, answer.text, answer.calls) == (f"Not {ONE} yet", "No.", [])


def test_thoughts_that_are_cut_off() -> None:
    answer = thought("One, two\n")
    assert (answer.thoughts, answer.text) == ("One, two\n", "")


def test_line_breaks_around_thoughts_are_markup() -> None:
    answer = thought("\nWell.\n\n</think>\n\nYes")
    assert (answer.thoughts, answer.text) == ("Well.", "Yes")


def test_a_second_end_of_thoughts_is_nothing() -> None:
    assert parsed("a</think>b").text == "ab"


def test_stop_strings_end_text_only() -> None:
    answer = thought("a STOP b</think>c STOP d", stop=("STOP",))
    assert (answer.thoughts, answer.text) == ("a STOP b", "c ")
    made = thought(f"</think>{block(call('f', ('a', True, 'STOP')))}", stop=("STOP",))
    assert made.calls == whole(("f", '{"a": "STOP"}'))
