"""The tokens of all chunks in one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4trio.models.base import Chunk
    from ds4trio.models.llama.config import LlamaConfig


def packed_row(config: LlamaConfig, chunks: Sequence[Chunk]) -> list[int]:
    """Their ids. Checked here, for nothing below survives a bad index. Raises: ValueError."""
    for chunk in chunks:
        size = len(chunk.token_ids)
        if not 0 <= chunk.logit_rows <= size or size == 0:
            raise ValueError(f"{chunk.logit_rows} rows of logits for {size} tokens")
        if chunk.state.length + size > config.context_tokens:
            raise ValueError("the sequence is longer than the context")
    row = [token_id for chunk in chunks for token_id in chunk.token_ids]
    if min(row) < 0 or max(row) >= config.vocab_size:
        raise ValueError("a token id is not in the vocabulary")
    return row
