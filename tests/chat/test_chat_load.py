from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from chat_rig import (
    CHATML,
    CONTROL,
    HEADERS,
    SPECIAL,
    conversation,
    in_transformers_words,
    small_tokenizer,
)
from transformers import AutoTokenizer

from ds4trio.chat.load import load_chat_format
from ds4trio.errors import LoadError
from ds4trio.text.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = small_tokenizer().control_tokens


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def rendered(source: Path) -> str:
    chat = load_chat_format(source, small_tokenizer()).format
    assert chat is not None
    return chat.render(conversation("hi")).text


@pytest.mark.parametrize(
    "template",
    [
        HEADERS,
        [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": HEADERS}],
    ],
)
def test_the_template_is_in_the_tokenizer_config(template: object, tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": template})
    assert rendered(tmp_path).startswith("<|begin|><|header|>user")


def test_a_template_of_its_own_file_comes_first(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": CHATML})
    (tmp_path / "chat_template.jinja").write_text(HEADERS)
    assert rendered(tmp_path).startswith("<|begin|><|header|>user")


def test_templates_see_special_tokens(tmp_path: Path) -> None:
    template = "{{ bos_token }} {{ eos_token }} {{ pad_token }}"
    config = {"chat_template": template, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    write(tmp_path, tokenizer_config=config, special_tokens_map={"pad_token": "<|eot|>"})
    assert rendered(tmp_path) == "<s> </s> <|eot|>"


def test_a_base_model_has_no_format_and_yet_an_end(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config=SPECIAL)
    chat = load_chat_format(tmp_path, small_tokenizer())
    assert chat.format is None
    assert chat.stop_ids == {TOKENS["</s>"]}


def test_all_that_ends_a_turn_stops(tmp_path: Path) -> None:
    config = {**SPECIAL, "chat_template": CHATML}
    write(
        tmp_path,
        tokenizer_config=config,
        config={"eos_token_id": 3},
        generation_config={"eos_token_id": [4, 5]},
    )
    chat = load_chat_format(tmp_path, small_tokenizer())
    assert chat.stop_ids == {3, 4, 5, TOKENS["</s>"], TOKENS["<|im_end|>"]}
    assert chat.format is not None
    assert chat.format.stop_ids == chat.stop_ids


@pytest.mark.parametrize("template", ["{% for %}", 5, [], [{"name": "rag", "template": "x"}]])
def test_a_wrong_template_names_the_folder(template: object, tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": template})
    with pytest.raises(LoadError) as caught:
        load_chat_format(tmp_path, small_tokenizer())
    assert caught.value.message.startswith(f"{tmp_path}: chat_template: ")
    assert "\n" not in caught.value.message


def test_a_gguf_file_has_its_template_inside(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(CONTROL)
    writer.add_eos_token_id(CONTROL.index("</s>"))
    writer.add_eot_token_id(CONTROL.index("<|eot|>"))
    writer.add_chat_template(HEADERS + "{{ eos_token }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert rendered(path).startswith("<|begin|><|header|>user")
    assert rendered(path).endswith("</s>")
    # The file numbers its tokens otherwise than this tokenizer.
    expected = {CONTROL.index("</s>"), CONTROL.index("<|eot|>"), TOKENS["</s>"], TOKENS["<|eot|>"]}
    assert load_chat_format(path, small_tokenizer()).stop_ids == expected


def test_a_gguf_file_without_tokens_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"model\.gguf: tokenizer\.ggml\.tokens: missing"):
        load_chat_format(path, small_tokenizer())


@pytest.mark.model
@pytest.mark.oracle
def test_the_default_model_writes_as_transformers_does(default_model: Path) -> None:
    tokenizer = load_tokenizer(default_model)
    chat = load_chat_format(default_model, tokenizer).format
    assert chat is not None
    asked = conversation("What is 12 + 34?", "46\n", "And ☕ <b>that</b>?")
    oracle: Any = AutoTokenizer.from_pretrained(default_model)
    theirs = partial(oracle.apply_chat_template, **in_transformers_words(asked))
    prompt = chat.render(asked)
    assert prompt.text == theirs(tokenize=False)
    assert prompt.token_ids == theirs(return_dict=False)
    assert chat.stop_ids == {tokenizer.control_tokens["<|im_end|>"]}
