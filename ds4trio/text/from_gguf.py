"""The tokenizer inside a GGUF file, in Hugging Face's form.

Source: llama.cpp's ``llama-vocab.cpp`` (names and meaning of the metadata, pre-tokenizers) and the
``tokenizer.json`` files of the models it converts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from ds4trio.errors import LoadError
from ds4trio.text.pieces import SPACE_MARK
from ds4trio.text.pre_tokenizers import normalizer_named, pre_tokenizer_named
from ds4trio.text.sentencepiece_proto import PieceType

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "tokenizer.ggml."
#: Byte-level pre-tokenizers whose models expect BOS unless the file says otherwise.
_BOS_BY_DEFAULT = ("llama3", "llama-v3", "llama-bpe")
_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def hf_tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """A tokenizer that encodes and decodes as the model was trained.

    Control and user-defined tokens are added tokens; BOS is in the post-processor, where the model
    expects it. Raises: LoadError naming the setting.
    """
    kind = metadata.get(_PREFIX + "model")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata)
    else:
        raise LoadError(f"{_PREFIX}model: {kind!r} is not supported (only gpt2 and llama)")
    _add_tokens(tokenizer, metadata)
    bos = _special_tokens(metadata).get("bos_token")
    if _adds_bos(metadata) and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


def tokenizer_config_from_gguf(metadata: Mapping[str, object]) -> dict[str, object]:
    """What ``tokenizer_config.json`` holds: special tokens, add_bos_token, chat_template.

    Raises: LoadError naming the setting.
    """
    config: dict[str, object] = {**_special_tokens(metadata), "add_bos_token": _adds_bos(metadata)}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return config


def _byte_level(metadata: Mapping[str, object]) -> Tokenizer:
    tokens = _strings(metadata, "tokens")
    name = metadata.get(_PREFIX + "pre", "default")
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [_merge(text, vocab) for text in _strings(metadata, "merges")]
    # Words that are tokens stay whole, whatever the merges say, in the vocabularies that were made
    # with tiktoken.
    whole_words = name in (*_BOS_BY_DEFAULT, "tekken")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole_words))
    tokenizer.pre_tokenizer = pre_tokenizer_named(name)
    if (normalizer := normalizer_named(name)) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Mapping[str, object]) -> Tokenizer:
    tokens = _strings(metadata, "tokens")
    unknown = _special_tokens(metadata).get("unk_token")
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=_merges_by_score(metadata, tokens),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", SPACE_MARK)
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(_PREFIX + "add_space_prefix", True):
        # A normalizer, unlike Metaspace, also puts the space after a control token, as the
        # original does with each text it is given.
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(metadata: Mapping[str, object], tokens: list[str]) -> list[tuple[str, str]]:
    """Each way to build a piece of two others, the best piece first.

    SentencePiece joins the pair whose result scores highest; a list of merges says the same.
    """
    scores, types = metadata.get(_PREFIX + "scores"), _types(metadata, tokens)
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise LoadError(f"{_PREFIX}scores: not one number for each token")
    score_of = {
        token: score
        for token, score, type_ in zip(tokens, scores, types, strict=True)
        if type_ == PieceType.NORMAL
    }
    merges = [
        (-score, len(token), index, token[:cut], token[cut:])
        for index, (token, score) in enumerate(score_of.items())
        for cut in range(1, len(token))
        if token[:cut] in score_of and token[cut:] in score_of
    ]
    return [(left, right) for *_, left, right in sorted(merges)]


def _add_tokens(tokenizer: Tokenizer, metadata: Mapping[str, object]) -> None:
    tokens = _strings(metadata, "tokens")
    unknown = _special_tokens(metadata).get("unk_token")
    special, plain = [], []
    for token, type_ in zip(tokens, _types(metadata, tokens), strict=True):
        if type_ == PieceType.CONTROL or (type_ == PieceType.UNKNOWN and token == unknown):
            special.append(AddedToken(token, normalized=False, special=True))
        elif type_ == PieceType.USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _adds_bos(metadata: Mapping[str, object]) -> bool:
    value = metadata.get(_PREFIX + "add_bos_token")
    if isinstance(value, bool):
        return value
    sentencepiece = metadata.get(_PREFIX + "model") == "llama"
    return sentencepiece or metadata.get(_PREFIX + "pre") in _BOS_BY_DEFAULT


def _special_tokens(metadata: Mapping[str, object]) -> dict[str, str]:
    tokens = _strings(metadata, "tokens")
    special: dict[str, str] = {}
    for name, key in _TOKEN_KEYS.items():
        token_id = metadata.get(_PREFIX + key)
        if token_id is None:
            continue
        if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
            raise LoadError(f"{_PREFIX}{key}: {token_id!r} is not in the vocabulary")
        special[name] = tokens[token_id]
    return special


def _types(metadata: Mapping[str, object], tokens: list[str]) -> list[object]:
    types = metadata.get(_PREFIX + "token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise LoadError(f"{_PREFIX}token_type: not one for each token")
    return types


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(_PREFIX + key)
    if not _is_strings(value):
        raise LoadError(f"{_PREFIX}{key}: missing, or not a list of texts")
    return value


def _is_strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _merge(text: str, vocab: Mapping[str, int]) -> tuple[str, str]:
    left, _, right = text.partition(" ")  # byte-level pieces hold no space
    if left not in vocab or right not in vocab or left + right not in vocab:
        raise LoadError(f"{_PREFIX}merges: {text!r} does not make a token of two")
    return left, right
