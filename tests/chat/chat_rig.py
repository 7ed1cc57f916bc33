"""A small tokenizer and chat templates in the styles of well-known models."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ds4trio.chat.template import TemplateChatFormat
from ds4trio.request import Conversation, Message
from ds4trio.text.from_hf import HfTokenizer

if TYPE_CHECKING:
    from ds4trio.chat.format import Prompt

CONTROL = [
    *("<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|/header|>", "<|eot|>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"),
    *("<think>", "</think>", "€"),
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
TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "alternating": ALTERNATING,
    "composed": COMPOSED,
    "cutting": CUTTING,
    "brackets": BRACKETS,
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


def conversation(*contents: str) -> Conversation:
    """Turns of a user and an assistant."""
    turns = [
        Message("assistant" if index % 2 else "user", text) for index, text in enumerate(contents)
    ]
    return Conversation(tuple(turns))


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
