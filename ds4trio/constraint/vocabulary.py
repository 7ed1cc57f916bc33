"""A tokenizer as grammars see it: each token's bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llguidance import LLTokenizer, TokenizerWrapper

if TYPE_CHECKING:
    from collections.abc import Collection

    from ds4trio.text.tokenizer import Tokenizer


class Vocabulary:
    """A tokenizer's text tokens, in llguidance's own form, and one more: the end.

    Control tokens have no text, so no grammar allows them, whatever it spells; but for the
    ``visible`` ones, which are markup, their spelling is their text. The end stands for whichever
    tokens end an answer, which is the engine's matter; its id follows the vocabulary's last.

    Making one takes most of a second for a large vocabulary, and holds the GIL: do it before there
    is anybody to wait for it. Runs on: any thread.
    """

    def __init__(self, tokenizer: Tokenizer, visible: Collection[str] = ()) -> None:
        self.size = tokenizer.vocab_size
        texts = [tokenizer.token_bytes(token_id) for token_id in range(self.size)]
        for spelling in visible:
            token_id = tokenizer.control_tokens.get(spelling)
            if token_id is not None:
                texts[token_id] = spelling.encode()
        self.longest_token_bytes = max(map(len, texts), default=1)
        self.tokenizer = LLTokenizer(TokenizerWrapper(_TokenTexts(tokenizer, texts)))


class _TokenTexts:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, texts: list[bytes]) -> None:
        self._tokenizer = tokenizer
        self._ids = {text: token_id for token_id, text in enumerate(texts) if text}
        self._longest = max(map(len, self._ids), default=0)
        self.tokens = [*texts, b""]
        self.eos_token_id = len(texts)

    def __call__(self, text: str) -> list[int]:
        """Where a grammar leaves no choice of text: the tokens that the model would use for it.

        Runs on: compiling threads, and the worker. Must not raise.
        """
        token_ids = self._tokenizer.encode_with_control(text)
        data = text.encode()
        if b"".join([self.tokens[token_id] for token_id in token_ids]) == data:
            return token_ids
        # Some tokenizers begin every text with a space; some spellings are control tokens' that are
        # not visible.
        return self._longest_tokens(data)

    def _longest_tokens(self, data: bytes) -> list[int]:
        token_ids: list[int] = []
        while data:
            heads = (data[:size] for size in range(min(self._longest, len(data)), 0, -1))
            head = next((head for head in heads if head in self._ids), b"")
            if not head:
                break
            token_ids.append(self._ids[head])
            data = data[len(head) :]
        return token_ids
