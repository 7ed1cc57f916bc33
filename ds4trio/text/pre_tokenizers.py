"""How byte-level vocabularies cut text into words, by the names GGUF files use.

Merges never cross a cut, so a wrong rule gives other tokens than the model was trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Regex, normalizers, pre_tokenizers

from ds4trio.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

# Each is the pattern in the ``tokenizer.json`` of the model family named.
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def pre_tokenizer_named(name: object) -> PreTokenizer:
    """The rule for a value of ``tokenizer.ggml.pre``. Raises: LoadError naming it."""
    build = _RULES.get(name) if isinstance(name, str) else None
    if build is None:
        raise LoadError(f"tokenizer.ggml.pre: {name!r} is not supported")
    return build()


def normalizer_named(name: object) -> Normalizer | None:
    """What is done to text before it is cut, if anything."""
    return normalizers.NFC() if name in _COMPOSED else None


def _gpt_2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _single_digits() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt_2()])


def _split(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _llama_3() -> PreTokenizer:
    return _split(_LLAMA_3)


def _qwen_2() -> PreTokenizer:
    return _split(_QWEN_2)


def _tekken() -> PreTokenizer:
    return _split(_TEKKEN)


_RULES: dict[str, Callable[[], PreTokenizer]] = {
    "default": _gpt_2,
    "gpt-2": _gpt_2,
    "gpt2": _gpt_2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "llama3": _llama_3,
    "llama-v3": _llama_3,
    "llama-bpe": _llama_3,
    "falcon3": _llama_3,
    "qwen2": _qwen_2,
    "deepseek-r1-qwen": _qwen_2,
    "tekken": _tekken,
}
_COMPOSED = ("qwen2", "deepseek-r1-qwen")
