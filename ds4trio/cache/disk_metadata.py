"""What a file says of itself, in its header, and whether it is the one that was looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.cache.disk_identity import Identity
    from ds4trio.cache.disk_names import SegmentName

#: Raised whenever files get another form, or the same model with the same settings computes
#: otherwise than before; older files are then set aside.
FORMAT = "1"


def metadata_of(
    identity: Identity, name: SegmentName, token_ids: Sequence[int] | None
) -> dict[str, str]:
    """``token_ids`` None: they are not to be told (who has the tokenizer can read them)."""
    fields = {
        "format": FORMAT,
        "model": identity.model,
        "tokenizer": identity.tokenizer,
        "numbers": identity.numbers,
        "start": str(name.start),
        "stop": str(name.stop),
        "parent": name.start_key,
        "key": name.key,
    }
    if token_ids is not None:
        fields["token_ids"] = " ".join(map(str, token_ids))
    return fields


def mismatch(found: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """In words: in what a file is not what it should be. It need not tell its token ids."""
    for field, value in wanted.items():
        if field == "token_ids" and field not in found:
            continue
        if found.get(field) != value:
            return f"it is of another {field}"
    return None
