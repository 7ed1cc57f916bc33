"""Bytes of tokens to text, never half a character."""

from __future__ import annotations

import codecs
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Utf8StreamDecoder:
    """A `ds4trio.text.tokenizer.StreamDecoder` over a table of each token's bytes.

    Ids that neither the table nor ``visible`` has add nothing. ``drop_space``: a first space is the
    tokenizer's own, not the text's, and is left out, unless it is of a token in ``kept_spaces``.
    What can never become a character is one U+FFFD for each maximal broken part, as the Unicode
    standard recommends (section 3.9) and browsers do.
    """

    def __init__(
        self,
        token_bytes: Mapping[int, bytes],
        *,
        drop_space: bool = False,
        kept_spaces: Collection[int] = (),
        visible: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        self._bytes_of = token_bytes.get
        self._visible = visible
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._drop_space = drop_space
        self._kept_spaces = kept_spaces

    def feed(self, token_ids: list[int]) -> str:
        bytes_of, visible = self._bytes_of, self._visible
        data = b"".join([visible.get(index) or bytes_of(index, b"") for index in token_ids])
        if self._drop_space and data:
            self._drop_space = False
            first = next(index for index in token_ids if visible.get(index) or bytes_of(index))
            if first not in self._kept_spaces:
                data = data.removeprefix(b" ")
        return self._decode(data)

    def finish(self) -> str:
        return self._decode(b"", True)
