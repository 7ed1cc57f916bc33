"""A small tokenizer and chat templates in the styles of well-known models."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ds4trio.chat.template import TemplateChatFormat
from ds4trio.request import Conversation, GenerationRequest, Message, ToolCall, ToolSpec
from ds4trio.text.from_hf import HfTokenizer

if TYPE_CHECKING:
    from ds4trio.chat.format import Prompt

CONTROL = [
    *("<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|/header|>", "<|eot|>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"),
    *("<think>", "</think>", "€", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"),
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

#: SmolLM2's and Qwen2.5's way: a default system message, one pair of tokens for every role.
CHATML = """
{%- if messages[0]['role'] != 'system' -%}
    {{- '<|im_start|>system\nBe helpful.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif -%}
"""
#: Llama 3's: headers, trimmed content.
HEADERS = """{{ '<|begin|>' }}
{%- for message in messages %}
    {{- '<|header|>' + message.role + '<|/header|>\n\n' + message.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}
"""
#: Llama 2's and Mistral's: roles must alternate, and the system message is in the first turn.
ALTERNATING = """{{ bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system, turns = messages[0].content + '\n\n', messages[1:] %}
{%- else %}{% set system, turns = '', messages %}{% endif %}
{%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: got ' + message.role) }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system if loop.first else '') + message.content.strip() + ' [/INST]' }}
    {%- else %}{{ ' ' + message.content.strip() + eos_token }}{% endif %}
{%- endfor %}"""
#: Phi's: the role is part of a control token's spelling, and so is, here, a name.
COMPOSED = """{% for message in messages %}
<|{{ message.role }}|>
{% if message.name is defined %}<|{{ message.name }}|>{% endif %}
{{ message.content }}<|eot|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
#: DeepSeek R1's and SmolLM3's: what the template does to messages joins what was apart.
CUTTING = """{% for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content.split('</think>')[-1].replace('/no_think', '').replace('\n', '') }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
#: The content stands where a spelling is begun and ended by the template.
BRACKETS = """{% for message in messages %}<s>[{{ message.content }}]</s>{% endfor %}<|eot|>"""
#: Qwen 3's and SmolLM3's way: tagged calls, and thoughts that can be switched off.
TAGGED_TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
    {{- 'Tools:' }}{% for tool in tools %}{{- '\n' + (tool | tojson) }}{% endfor %}
    {{- '\nWrite <tool_call>\n{"name": <name>, "arguments": <args>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content is string %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""
#: Mistral's: a list of calls, ids of nine characters, arguments that may be text.
LISTED_TOOLS = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[TOOLS]' + (tools | tojson) }}{% endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('nine characters') }}{% endif %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + ', "id": "' + call.id + '"}' }}
            {{- ', ' if not loop.last }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[RESULT]{"id": "' + message.tool_call_id + '", "content": ' }}
        {{- (message.content | tojson) + '}[/RESULT]' }}
    {%- endif %}
{%- endfor %}"""
#: Llama 3.1's: one call a turn, its arguments are "parameters", tools in the first user's turn.
BARE_TOOLS = """{{ '<|begin|>' }}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|header|>assistant<|/header|>\n\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- (call.arguments | tojson) + '}<|eot|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|header|>ipython<|/header|>\n\n' + (message.content | tojson) + '<|eot|>' }}
    {%- else %}
        {{- '<|header|>' + message.role + '<|/header|>\n\n' }}
        {%- if tools and loop.first %}
            {{- 'Answer with {"name": function name, "parameters": dictionary of arguments}.\n\n' }}
            {%- for tool in tools %}{{- (tool | tojson(indent=4)) + '\n\n' }}{% endfor %}
        {%- endif %}
        {{- message.content | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}"""
#: DeepSeek R1's: the thoughts are begun for the model.
THINKING = """{{ bos_token }}{% for message in messages %}
{%- if message.role == 'user' %}{{ '<|user|>' + message.content }}
{%- else %}{{ '<|assistant|>' + message.content.split('</think>')[-1] + eos_token }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"""
TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "alternating": ALTERNATING,
    "composed": COMPOSED,
    "cutting": CUTTING,
    "brackets": BRACKETS,
    "tagged tools": TAGGED_TOOLS,
    "listed tools": LISTED_TOOLS,
    "bare tools": BARE_TOOLS,
    "thinking": THINKING,
}

#: Text around and about control tokens, and about the stand-ins of what is hidden.
TYPED = st.lists(
    st.one_of(
        st.sampled_from(CONTROL),
        st.sampled_from(["<|im_", "end|>", "<|", "|>", "<", ">", "s>", "</", "INST", "[", "]"]),
        st.sampled_from(["/no_think", "\n", " ", "user", "im_end", "\U00100000", "\U00100001"]),
        st.text(max_size=6),
    ),
    max_size=8,
).map("".join)


@cache
def backend() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["system user assistant the cat sat on the mat"] * 5, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL])
    return tokenizer


@cache
def small_tokenizer() -> HfTokenizer:
    return HfTokenizer(json.loads(backend().to_str()))


@cache
def small_format(style: str) -> TemplateChatFormat:
    return TemplateChatFormat(TEMPLATES[style], small_tokenizer(), variables=SPECIAL)


@cache
def oracle(style: str) -> PreTrainedTokenizerFast:
    fast: Any = PreTrainedTokenizerFast  # its constructor has no types
    made: PreTrainedTokenizerFast = fast(tokenizer_object=backend(), **SPECIAL)
    made.chat_template = TEMPLATES[style]
    return made


def asking(*messages: Message, **settings: Any) -> GenerationRequest:
    return GenerationRequest(Conversation(messages), **settings)


def conversation(*contents: str) -> GenerationRequest:
    """Turns of a user and an assistant."""
    turns = [
        Message("assistant" if index % 2 else "user", text) for index, text in enumerate(contents)
    ]
    return asking(*turns)


def in_transformers_words(request: GenerationRequest) -> dict[str, Any]:
    """The arguments of ``apply_chat_template``."""
    assert isinstance(request.prompt, Conversation)
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in request.tools
    ]
    messages = [_in_transformers_words(message) for message in request.prompt.messages]
    return {"conversation": messages, "tools": tools or None, "add_generation_prompt": True}


def _in_transformers_words(message: Message) -> dict[str, object]:
    fields: dict[str, object] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return fields


def call(id_: str, name: str, **arguments: object) -> ToolCall:
    return ToolCall(id_, name, json.dumps(arguments))


#: A tool as clients describe one.
WEATHER = ToolSpec(
    "get_weather",
    'The weather "now" in a city',
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "as in <Paris>"},
            "days": {"type": "integer"},
        },
        "required": ["city"],
    },
)
CLOCK = ToolSpec("clock", "", {"type": "object", "properties": {}})


def control_in(prompt: Prompt) -> list[int]:
    ids = set(small_tokenizer().control_tokens.values())
    return [index for index in prompt.token_ids if index in ids]


def spelled(prompt: Prompt) -> str:
    """The prompt's text, from its ids."""
    names = {index: name for name, index in small_tokenizer().control_tokens.items()}
    tokenizer = small_tokenizer()
    return b"".join(
        names[index].encode() if index in names else tokenizer.token_bytes(index)
        for index in prompt.token_ids
    ).decode()
