"""What each output format lets through, and what is refused, and why."""

from __future__ import annotations

import json
import random
import threading
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vocabulary import CALL, END, id_of, small_tokenizer, text_of

from ds4trio.constraint.grammar import GrammarCompiler
from ds4trio.constraint.vocabulary import Vocabulary
from ds4trio.errors import RequestError
from ds4trio.request import Choice, JsonSchema, LarkGrammar, OutputFormat, Regex
from ds4trio.testing import ByteTokenizer


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(Vocabulary(small_tokenizer(), {CALL, "<absent>"}))


@pytest.fixture(scope="module")
def bytewise() -> GrammarCompiler:
    return GrammarCompiler(Vocabulary(ByteTokenizer()))


def admits(compiler: GrammarCompiler, form: OutputFormat, text: str) -> bool:
    """Whether the text, byte by byte, is whole and right."""
    matcher = compiler.compile(form).new_matcher()
    for byte in text.encode():
        if matcher.is_complete or not matcher.allowed()[byte]:
            return False
        matcher.accept(byte)
    matcher.allowed()
    return matcher.may_end


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (JsonSchema(PERSON), '{"name": "A", "age": 3}', '{"name": "A", "age": -3}'),
        (JsonSchema(PERSON), '{\n  "name":"é"\n}', '{"age": 3}'),
        (JsonSchema(PERSON), '{"name": "A"}', '{"name": "A", "other": 1}'),
        (JsonSchema({}), '{"any": [1, null, {"thing": true}]}', "[1]"),
        (JsonSchema({"type": "object"}), "{}", "1"),
        (JsonSchema({"type": "array"}), "[1," + " " * 40 + "2]", "[1," + " " * 41 + "2]"),
        (Regex(r"\d{3}-[ab]+/x"), "123-abba/x", "123-abc/x"),
        (Regex("a|bc"), "bc", "b"),
        (LarkGrammar('start: "(" start ")" | "x"'), "((x))", "((x)"),
        (LarkGrammar('start: "it is " %json {"type": "integer"}'), "it is 12", "it is a"),
        (Choice(("yes", "no", 'may"be\n', "ça")), 'may"be\n', "yesno"),
        (Choice(("yes", "yes, sir")), "yes", "yes,"),
        (Choice(("", "x")), "", "y"),
    ],
)
def test_formats(bytewise: GrammarCompiler, form: OutputFormat, right: str, wrong: str) -> None:
    assert admits(bytewise, form, right)
    assert not admits(bytewise, form, wrong)


NESTED: dict[str, Any] = {}
for _ in range(400):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (JsonSchema({"type": "nope"}), "Invalid type: nope"),
        (JsonSchema({"not": {}}), 'Unimplemented keys: ["not"]'),
        (JsonSchema({"type": "integer", "minimum": 3, "maximum": 2}), "greater than maximum"),
        (JsonSchema({"allOf": [{"type": "string"}, {"type": "null"}]}), "incompatible types"),
        (JsonSchema({"enum": []}), "Unsatisfiable"),
        (JsonSchema({"$ref": "https://example.com/x"}), "example.com"),
        (JsonSchema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "nothing can"),
        (JsonSchema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (JsonSchema({"properties": 3}), "properties must be an object"),
        (JsonSchema(NESTED), "recursion limit"),
        (JsonSchema({"const": "\ud800"}), "hex escape"),
        (JsonSchema({"const": float("nan")}), "expected value"),
        (Regex("("), "unclosed group"),
        (Regex(r"[^\s\S]"), "nothing can be written"),
        (Regex("\udfff"), "surrogates"),
        (LarkGrammar(""), "Empty grammar"),
        (LarkGrammar("begin: 'a'"), "'"),
        (LarkGrammar("start: start"), "nothing can be written"),
        (LarkGrammar("start: <|end|>"), ""),
        (Choice(()), "nothing to choose from"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refusals_say_why(compiler: GrammarCompiler, form: OutputFormat, why: str) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(form)
    assert why in caught.value.message
    assert caught.value.param is None


@given(st.text() | st.text(alphabet='start: "/|()[]{}<>%*+?\\n,'))
def test_any_text_is_compiled_or_refused(bytewise: GrammarCompiler, text: str) -> None:
    """Whatever is sent as a grammar, nothing else is raised."""
    for form in (Regex(text), LarkGrammar(text), LarkGrammar(f"start: {text}"), Choice((text,))):
        with suppress(RequestError):
            bytewise.compile(form)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)
KEYS = ["type", "properties", "items", "enum", "anyOf", "$ref", "required", "minLength", "pattern"]


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_json_is_compiled_or_refused(bytewise: GrammarCompiler, schema: dict[str, Any]) -> None:
    with suppress(RequestError):
        bytewise.compile(JsonSchema(schema))


def test_the_latest_are_kept() -> None:
    compiler = GrammarCompiler(Vocabulary(ByteTokenizer()), keep=2)
    one = compiler.compile(Regex("a"))
    assert compiler.compile(Regex("a")) is one
    compiler.compile(JsonSchema({"b": {}, "type": "object"}))
    assert compiler.compile(Regex("a")) is one
    assert compiler.compile(LarkGrammar("start: /c/")) is compiler.compile(
        LarkGrammar("start: /c/")
    )
    compiler.compile(Regex("d"))
    assert compiler.compile(Regex("a")) is not one


def test_compiling_side_by_side() -> None:
    compiler = GrammarCompiler(Vocabulary(small_tokenizer()))
    failures: list[BaseException] = []

    def compile_some(first: int) -> None:
        try:
            for n in range(first, first + 20):
                schema = {"type": "array", "items": {"const": n % 30}, "minItems": 2, "maxItems": 2}
                assert speak(compiler, JsonSchema(schema), n).count(str(n % 30)) >= 2
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=compile_some, args=[10 * n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def speak(compiler: GrammarCompiler, form: OutputFormat, seed: int = 0) -> str:
    """Any text of the format, token by token."""
    matcher = compiler.compile(form).new_matcher()
    rng, token_ids = random.Random(seed), []
    while not matcher.is_complete:
        choices = matcher.allowed().nonzero()[0].tolist()
        if not choices or (matcher.may_end and rng.random() < 0.3):
            assert matcher.may_end
            break
        token_ids.append(rng.choice(choices))
        matcher.accept(token_ids[-1])
    return text_of(token_ids)


def test_sequences_share_a_grammar_and_nothing_else(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(Regex("(ab|ba)x"))
    one, other = grammar.new_matcher(), grammar.new_matcher()
    a, b = small_tokenizer().encode("a")[0], small_tokenizer().encode("b")[0]
    one.accept(a)
    assert one.allowed()[b]
    assert not one.allowed()[a]
    assert other.allowed()[a]
    assert grammar.new_matcher().allowed()[b]


def test_text_only_unless_it_is_markup(compiler: GrammarCompiler) -> None:
    anything = compiler.compile(Regex("(?s:.*)")).new_matcher().allowed()
    assert anything.shape == (small_tokenizer().vocab_size,)
    assert not anything[id_of(END)]
    assert anything[id_of(CALL)]
    forced = compiler.compile(LarkGrammar(f'start: "{CALL}" "x"')).new_matcher()
    assert forced.allowed().nonzero()[0].tolist() == [id_of(CALL)]
    spelled = compiler.compile(LarkGrammar(f'start: "{END}"')).new_matcher().allowed()
    assert spelled.any()
    assert not spelled[id_of(END)]


def test_where_there_is_no_choice_the_tokens_are_the_models_own(compiler: GrammarCompiler) -> None:
    text = '{"name": "Ann", "age": 42}'
    matcher = compiler.compile(LarkGrammar(f"start: {json.dumps(text)}")).new_matcher()
    token_ids = []
    while not matcher.is_complete:
        (token_id,) = matcher.allowed().nonzero()[0].tolist()
        token_ids.append(token_id)
        matcher.accept(token_id)
    assert token_ids == small_tokenizer().encode(text)


def test_what_is_no_token_of_the_format_ends_it(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Regex("abc")).new_matcher()
    matcher.accept(small_tokenizer().encode("x")[0])
    assert not matcher.is_complete
    with pytest.raises(RequestError, match="format has failed"):
        matcher.allowed()
