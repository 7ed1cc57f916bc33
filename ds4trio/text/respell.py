"""A ``tokenizer.json`` whose control tokens nobody can type.

The ``tokenizers`` package finds control tokens by their spelling, wherever it stands. In the
respelled copy each has a spelling with a secret in it, drawn when the model is loaded: text from
outside can't hold it, and the rest of the tokenizer (how text around a control token is cut,
stripped and normalised) stays as it is.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A private use character: no vocabulary merges it with its neighbours.
_MARK = "\U0010fffd"


def secret_spellings(token_ids: Iterable[int]) -> dict[int, str]:
    """An unguessable spelling for each id. None is a prefix of another."""
    nonce = secrets.token_hex(16)
    return {token_id: f"{_MARK}{nonce}{token_id}{_MARK}" for token_id in token_ids}


def respell(document: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    """The document with the tokens in ``names`` spelled anew, and no post-processor.

    Ids stay. Merges that build an old spelling out of text go. ``document`` is a
    ``tokenizer.json`` that the ``tokenizers`` package accepts.
    """
    added = cast("list[dict[str, object]]", document.get("added_tokens") or [])
    respelled = [token | {"content": _renamed(token["content"], names)} for token in added]
    model = dict(cast("dict[str, object]", document["model"]))
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): index for piece, index in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if merges := cast("list[str | list[str]] | None", model.get("merges")):
        model["merges"] = [merge for merge in merges if not _touches(merge, names)]
    if "unk_token" in model:
        model["unk_token"] = _renamed(model["unk_token"], names)
    return {**document, "model": model, "added_tokens": respelled, "post_processor": None}


def _renamed(spelling: object, names: Mapping[str, str]) -> object:
    return names.get(spelling, spelling) if isinstance(spelling, str) else spelling


def _touches(merge: str | list[str], names: Mapping[str, str]) -> bool:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left + right in names or left in names or right in names
