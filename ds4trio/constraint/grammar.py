"""Output formats compiled to grammars, and sequences held to them.

Source: llguidance's documentation (``docs/syntax.md``, ``docs/json_schema.md``): its dialect of
Lark, what it knows of JSON schema, its regular expressions (Rust's, without look-around).
"""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import TYPE_CHECKING, assert_never

import numpy as np
from llguidance import LLMatcher

from ds4trio.errors import RequestError
from ds4trio.request import Choice, JsonSchema, LarkGrammar, Regex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ds4trio.constraint.vocabulary import Vocabulary
    from ds4trio.request import OutputFormat

#: JSON may be written with space, but not endlessly: small models do. The bound is a guess: deep
#: enough for indented text.
_SPACE = r"[\x20\x0A\x0D\x09]{1,40}"


#: llguidance has no room for more, but finds out late.
MOST_OPTIONS = 1500


class CompiledGrammar:
    """What an answer must look like; any number of sequences may be held to it.

    An engine's `TokenConstraint`. Made by a `GrammarCompiler`.
    """

    def __init__(self, start: LLMatcher, vocab_size: int) -> None:
        self._start = start
        self._vocab_size = vocab_size

    def new_matcher(self) -> GrammarMatcher:
        """Runs on: any thread, but one at a time."""
        return GrammarMatcher(self._start.deep_copy(), self._vocab_size)


class GrammarMatcher:
    """How far one answer has come. An engine's `TokenMatcher`. Runs on: worker."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.bool_]:
        """Shapes: (vocab_size of the tokenizer,)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise RequestError(f"The answer's format has failed: {_why(self._matcher)}")
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    @property
    def may_end(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def accept(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)


class GrammarCompiler:
    """Compiles output formats for one vocabulary, and keeps the latest. Runs on: any thread."""

    def __init__(self, vocabulary: Vocabulary, *, keep: int = 64) -> None:
        """``keep``: how many grammars. The default is a guess."""
        self._compile = lru_cache(maxsize=keep)(partial(_compile, vocabulary))

    def compile(self, form: OutputFormat) -> CompiledGrammar:
        """Takes a millisecond or many, most of them without the GIL.

        Raises: RequestError that says why, and of which field of the request (see `JsonSchema`), if
            the format is not supported or nothing can be written in it.
        """
        try:
            return self._compile(_grammar(form))
        except (ValueError, RecursionError) as error:  # from a schema or text that is none
            where = form.param or "The output format"
            raise RequestError(f"{where}: cannot be used: {error}", param=form.param) from None


def _compile(vocabulary: Vocabulary, grammar: str) -> CompiledGrammar:
    """Raises: ValueError."""
    matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0)
    matcher.compute_bitmask()  # the dearest one; also finds out if no token can be the first
    if matcher.is_error():
        raise ValueError(_why(matcher))
    return CompiledGrammar(matcher, vocabulary.size)


def _grammar(form: OutputFormat) -> str:
    """In llguidance's own notation. Raises: ValueError, RecursionError."""
    match form:
        case JsonSchema(schema):
            return LLMatcher.grammar_from_json_schema(
                json.dumps(schema or {"type": "object"}), defaults={"whitespace_pattern": _SPACE}
            )
        case Regex(pattern):
            return LLMatcher.grammar_from_regex(pattern)
        case LarkGrammar(grammar):
            return LLMatcher.grammar_from_lark(grammar)
        case Choice(()):
            raise ValueError("there is nothing to choose from")
        case Choice(options) if len(options) > MOST_OPTIONS:
            raise ValueError(f"{len(options)} options; {MOST_OPTIONS} are the most")
        case Choice(options):
            texts = " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
            return LLMatcher.grammar_from_lark(f"start: {texts}")
    assert_never(form)


def _why(matcher: LLMatcher) -> str:
    """llguidance's own words, without its state; in ours where it has only a name."""
    words = matcher.get_error().split("\n<")[0].strip()
    return "nothing can be written in it" if words == "NoExtensionBias" else words
