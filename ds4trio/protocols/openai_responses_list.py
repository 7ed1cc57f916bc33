"""``GET /v1/responses/{id}/input_items``: a page of items.

Source: OpenAI's API reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4trio.protocols.fields import invalid, to_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ds4trio.protocols.wire import Item

DEFAULT_ITEMS = 20
MAX_ITEMS = 100


def item_list(items: Sequence[Item], query: Mapping[str, str]) -> bytes:
    """The page that ``limit``, ``order`` (``desc``: the last item first) and ``after`` ask for.

    Raises: RequestError.
    """
    limit = whole_number(query, "limit", DEFAULT_ITEMS)
    if not 1 <= limit <= MAX_ITEMS:
        raise invalid("limit", f"not between 1 and {MAX_ITEMS}")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", f"{order!r} is not one of asc, desc")
    ordered = list(items) if order == "asc" else list(reversed(items))
    after = query.get("after")
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item.get("id") == after]
        if not places:
            raise invalid("after", f"there is no item {after!r}")
        ordered = ordered[places[0] + 1 :]
    page = ordered[:limit]
    body = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(ordered) > limit,
    }
    return to_text(body, "input").encode()


def whole_number(query: Mapping[str, str], name: str, default: int) -> int:
    """Raises: RequestError."""
    text = query.get(name)
    if text is None:
        return default
    # Not all that int() takes, and nothing that it would take long for.
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise invalid(name, f"{text!r} is not a whole number")
    return int(text)
