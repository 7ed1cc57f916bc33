"""Which folders get DeepSeek V4's chat format, and which prompt contract."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from chat_rig import small_tokenizer
from deepseek_v4_rig import BOS, EOS, ask, tokenizer

from ds4trio.chat.deepseek_v4 import DeepseekV4ChatFormat
from ds4trio.chat.load import load_chat_format
from ds4trio.errors import LoadError
from ds4trio.request import Message, Thinking

if TYPE_CHECKING:
    from pathlib import Path

HARDEST = ask(Message("user", "Hi"), thinking=Thinking(effort="max"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"model_type": "deepseek_v4", "eos_token_id": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "encoding").mkdir()
    encoder = tmp_path / "encoding" / "encoding_dsv4.py"
    encoder.write_text("REASONING_EFFORT_MAX = ''\n")
    return tmp_path


def test_a_folder_of_deepseek_v4(folder: Path) -> None:
    loaded = load_chat_format(folder, tokenizer())
    assert isinstance(loaded.format, DeepseekV4ChatFormat)
    assert loaded.stop_ids == {7, tokenizer().control_tokens[EOS]}
    assert loaded.format.render(HARDEST).text.startswith(f"{BOS}Reasoning Effort: Absolute")


def test_a_setting_outweighs_what_ships_with_the_model(folder: Path) -> None:
    loaded = load_chat_format(folder, tokenizer(), prompt_contract="0731")
    assert loaded.format is not None
    assert loaded.format.render(HARDEST).text.startswith(f"{BOS}Reasoning Effort: Beyond")


def test_another_vocabulary_needs_a_template(folder: Path) -> None:
    assert load_chat_format(folder, small_tokenizer()).format is None


def test_another_model_with_the_vocabulary_too(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert load_chat_format(folder, tokenizer()).format is None


def test_a_vocabulary_that_lacks_something() -> None:
    with pytest.raises(LoadError, match="lacks"):
        DeepseekV4ChatFormat(small_tokenizer())


def test_without_the_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ds4trio.chat.deepseek_v4", "ds4trio.chat.deepseek_v4_prompt"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "deepseek_recipe", None)
    with pytest.raises(LoadError, match="deepseek-recipe"):
        load_chat_format(folder, tokenizer())
