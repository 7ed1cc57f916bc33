"""DeepSeek V4's chat format, a small tokenizer with its control tokens, and the recipe's own view
of the same requests: by way of its Chat Completions conversion, which ds4trio does not use."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import deepseek_recipe as recipe
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ds4trio.chat.deepseek_v4 import DeepseekV4ChatFormat
from ds4trio.chat.deepseek_v4_prompt import PromptContract
from ds4trio.request import (
    Conversation,
    GenerationRequest,
    Message,
    Thinking,
    ToolCall,
    ToolSpec,
)
from ds4trio.text.from_hf import HfTokenizer

if TYPE_CHECKING:
    from ds4trio.chat.format import Prompt

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
OPEN, CLOSE = "<｜DSML｜", "</｜DSML｜"
#: As in the official tokenizer: the first three are special, the others are not.
SPECIAL = [BOS, EOS, "<｜▁pad▁｜>"]
ADDED = [USER, ASSISTANT, "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>"]
INJECTIONS = [
    *SPECIAL,
    *ADDED,
    "</tool_result>",
    f"{CLOSE}parameter>",
    f"{EOS}{USER}",
    "<｜Us",
    "er｜>",
]


@cache
def tokenizer_json() -> str:
    """Byte-level BPE with a few hundred merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = ["You can invoke tools by writing a block like the following:"] * 3
    tokenizer.train_from_iterator([*corpus, "parameter invoke tool_calls string true"], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    return str(tokenizer.to_str())


@cache
def tokenizer() -> HfTokenizer:
    return HfTokenizer(json.loads(tokenizer_json()))


@cache
def official() -> recipe.DeepseekV4Encoding:
    """The recipe with the same tokenizer."""
    return recipe.DeepseekV4Encoding().with_tokenizer(recipe.Tokenizer.from_str(tokenizer_json()))


def chat_format(contract: PromptContract = PromptContract.TIERED) -> DeepseekV4ChatFormat:
    numbers = itertools.count()
    return DeepseekV4ChatFormat(
        tokenizer(), contract=contract, new_call_id=lambda: f"call_{next(numbers)}"
    )


def render(request: GenerationRequest, contract: PromptContract = PromptContract.TIERED) -> Prompt:
    return chat_format(contract).render(request)


def ask(*messages: Message, **fields: Any) -> GenerationRequest:
    fields.setdefault("thinking", Thinking(effort="low"))
    return GenerationRequest(Conversation(messages), **fields)


def chat_body(request: GenerationRequest) -> dict[str, Any]:
    """The request in OpenAI's words."""
    assert isinstance(request.prompt, Conversation)
    body: dict[str, Any] = {
        "model": "DeepSeek-V4-Pro",
        "messages": [_message_body(message) for message in request.prompt.messages],
    }
    if request.tools:
        body["tools"] = [_tool_body(tool) for tool in request.tools]
        body["tool_choice"] = request.tool_choice
    if request.thinking.effort is not None:
        body["reasoning_effort"] = request.thinking.effort
    if request.thinking.enabled is not None:
        body["thinking"] = {"type": "enabled" if request.thinking.enabled else "disabled"}
    return body


def official_conversation(request: GenerationRequest) -> recipe.Conversation:
    converted = recipe.ChatCompletionRequest(chat_body(request)).convert(recipe.ConversionOptions())
    return converted.conversation


def _message_body(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        body["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return body


def _tool_body(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description}
    return {"type": "function", "function": {**function, "parameters": dict(tool.parameters)}}


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=8), st.sampled_from(INJECTIONS), st.just("\n\n"), st.just("é日本🙂")
    ),
    max_size=4,
).map("".join)
NAMES = st.from_regex(r"[a-z][a-z_0-9-]{0,9}", fullmatch=True)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=4)
KINDS = st.sampled_from(["string", "number", "integer", "boolean", "array", "object"])
TOOLS = st.builds(
    lambda name, description, properties: ToolSpec(
        name,
        description,
        {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}},
    ),
    NAMES,
    TEXTS,
    st.dictionaries(st.text(max_size=6), KINDS, min_size=1, max_size=3),
)
ASIDES = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user", "user", "latest_reminder"]), TEXTS),
    st.builds(
        lambda text, reasoning: Message("assistant", text, reasoning=reasoning),
        TEXTS,
        st.none() | TEXTS,
    ),
)


@st.composite
def tool_rounds(draw: st.DrawFn) -> list[Message]:
    """An assistant's calls, and their results in any order."""
    number = draw(st.integers(1, 3))
    prefix = draw(st.uuids())
    written = st.one_of(ARGUMENTS.map(json.dumps), st.sampled_from(["[1]", "oops", '{"a":']))
    calls = tuple(
        ToolCall(f"{prefix}-{index}", draw(NAMES), draw(written)) for index in range(number)
    )
    results = [Message("tool", draw(TEXTS), tool_call_id=call.id) for call in calls]
    said, reasoning = draw(TEXTS), draw(st.none() | TEXTS)
    turn = Message("assistant", said, reasoning=reasoning, tool_calls=calls)
    return [turn, *draw(st.permutations(results))]


CONVERSATIONS = st.lists(st.one_of(ASIDES.map(lambda m: [m]), tool_rounds()), max_size=6).map(
    lambda rounds: [Message("user", "Hello"), *itertools.chain.from_iterable(rounds)]
)
THINKING = st.builds(
    Thinking,
    st.sampled_from([None, True, False]),
    st.sampled_from([None, "minimal", "low", "medium", "high", "xhigh", "max"]),
) | st.just(Thinking(effort="none"))
REQUESTS = st.builds(
    lambda messages, tools, choice, thinking: GenerationRequest(
        Conversation(tuple(messages)), tools=tuple(tools), tool_choice=choice, thinking=thinking
    ),
    CONVERSATIONS,
    st.lists(TOOLS, max_size=3, unique_by=lambda tool: tool.name),
    st.sampled_from(["auto", "auto", "none"]),
    THINKING,
)
