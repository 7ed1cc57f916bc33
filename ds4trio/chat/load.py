"""A model's chat format, from the files it comes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4trio.chat.deepseek_v4_dsml import MARK
from ds4trio.chat.template import TemplateChatFormat
from ds4trio.errors import LoadError
from ds4trio.text.from_gguf import tokenizer_config_from_gguf
from ds4trio.text.gguf_metadata import read_gguf_metadata
from ds4trio.text.json_file import read_json_object, token_spelling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ds4trio.chat.deepseek_v4 import DeepseekV4ChatFormat
    from ds4trio.chat.format import ChatFormat
    from ds4trio.config import ContractName
    from ds4trio.text.tokenizer import Tokenizer

_TOLD_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_GGUF_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class LoadedChat:
    """``format`` is None for a base model, which has no template. ``stop_ids`` are the tokens with
    which the model ends a text or its turn, known with or without a format. ``told`` is what comes
    with the tokenizer for those who do its work elsewhere, by transformers' names: spellings
    (``eos_token``, ...) and the ``chat_template``; None what there is none of.
    """

    format: ChatFormat | None
    stop_ids: frozenset[int]
    told: Mapping[str, str | None]


def load_chat_format(
    source: Path, tokenizer: Tokenizer, *, prompt_contract: ContractName = "auto"
) -> LoadedChat:
    """How the model in a folder or a GGUF file writes conversations.

    ``prompt_contract`` is for DeepSeek V4 alone; auto: what comes with the model says.
    Raises: LoadError naming the file.
    """
    gguf = source.is_file()
    config, stop_ids = _read_gguf(source) if gguf else _read_folder(source)
    variables = {key: token_spelling(config[key]) for key in config if key.endswith("_token")}
    eos_id = tokenizer.control_tokens.get(variables.get("eos_token") or "")
    if eos_id is not None:
        stop_ids |= {eos_id}
    try:
        if not gguf and _is_deepseek_v4(source, tokenizer):
            deepseek = _deepseek_v4(source, tokenizer, stop_ids, prompt_contract)
            return LoadedChat(deepseek, deepseek.stop_ids, _told(config, None))
        if prompt_contract != "auto":
            raise LoadError("the setting prompt_contract is for DeepSeek V4, which this is not")
        template = _template(config.get("chat_template"))
        if template is None:
            return LoadedChat(None, stop_ids, _told(config, None))
        chat = TemplateChatFormat(
            template,
            tokenizer,
            variables={key: text for key, text in variables.items() if text is not None},
            stop_ids=stop_ids,
        )
    except LoadError as error:
        raise LoadError(f"{source}: {error.message}") from None
    return LoadedChat(chat, chat.stop_ids, _told(config, template))


def _told(config: Mapping[str, object], template: str | None) -> dict[str, str | None]:
    tokens = {name: token_spelling(config.get(name)) for name in _TOLD_TOKENS}
    return {**tokens, "chat_template": template}


def _read_gguf(path: Path) -> tuple[dict[str, object], frozenset[int]]:
    metadata = read_gguf_metadata(path)
    ids = [metadata.get(f"tokenizer.ggml.{key}") for key in _GGUF_STOP_KEYS]
    try:
        config = tokenizer_config_from_gguf(metadata)
    except LoadError as error:
        raise LoadError(f"{path}: {error.message}") from None
    return config, frozenset(index for index in ids if isinstance(index, int))


def _read_folder(folder: Path) -> tuple[dict[str, object], frozenset[int]]:
    config = read_json_object(folder / "special_tokens_map.json")
    config |= read_json_object(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            config["chat_template"] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise LoadError(f"{file}: {error}") from None
    names = ("generation_config.json", "config.json")
    ids = {index for name in names for index in _eos_ids(read_json_object(folder / name))}
    return config, frozenset(ids)


def _eos_ids(config: Mapping[str, object]) -> Iterator[int]:
    value = config.get("eos_token_id")
    for index in value if isinstance(value, list) else [value]:
        if isinstance(index, int):
            yield index


def _is_deepseek_v4(folder: Path, tokenizer: Tokenizer) -> bool:
    """Whether it is one that has its own vocabulary; any other needs a template like all models."""
    is_v4 = read_json_object(folder / "config.json").get("model_type") == "deepseek_v4"
    return is_v4 and MARK in tokenizer.control_tokens


def _deepseek_v4(
    folder: Path,
    tokenizer: Tokenizer,
    stop_ids: frozenset[int],
    contract: ContractName,
) -> DeepseekV4ChatFormat:
    # Its package is large, and no other model needs it.
    try:
        from ds4trio.chat.deepseek_v4 import DeepseekV4ChatFormat
        from ds4trio.chat.deepseek_v4_prompt import PromptContract, prompt_contract
    except ImportError as error:
        raise LoadError(
            f"DeepSeek V4's prompts need the package deepseek-recipe: {error}"
        ) from None
    chosen = prompt_contract(folder) if contract == "auto" else PromptContract(contract)
    return DeepseekV4ChatFormat(tokenizer, contract=chosen, stop_ids=stop_ids)


def _template(value: object) -> str | None:
    """The template, or of several named ones the default. Raises: LoadError."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        for entry in value:
            match entry:
                case {"name": "default", "template": str(template)}:
                    return template
    raise LoadError("chat_template: neither a template nor a list with one named default")
