from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.output import OutputParser
from ds4trio.events import TextDelta

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3)
TEXTS = st.text("ab\n", max_size=30)


def read(parser: OutputParser, pieces: list[str]) -> str:
    deltas = [delta for piece in pieces[:-1] for delta in parser.feed(piece)]
    deltas += parser.finish(pieces[-1] if pieces else "")
    assert all(delta.text for delta in deltas)
    return "".join([delta.text for delta in deltas])


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that ends first, the longest of several."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 30)))
def test_any_cutting_gives_the_text_before_the_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    borders = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(borders)]
    parser = OutputParser(stop=stops)
    assert (read(parser, pieces), parser.stop_sequence) == naive(text, stops)


@given(text=TEXTS, stops=STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    parser = OutputParser(stop=stops)
    said, known = "", ""
    for char in text:
        known += char
        said += "".join([delta.text for delta in parser.feed(char)])
        if parser.stop_sequence is not None:
            return
        held = known[len(said) :]
        beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        longest = max((b for b in beginnings if known.endswith(b)), key=len, default="")
        assert held == longest


def test_without_stop_strings_text_passes_at_once() -> None:
    parser = OutputParser()
    assert parser.feed("a") == [TextDelta("a")]
    assert parser.feed("") == []
    assert parser.finish("b") == [TextDelta("b")]


def test_nothing_follows_a_stop_string() -> None:
    parser = OutputParser(stop=["STOP"])
    assert parser.feed("one STO") == [TextDelta("one ")]
    assert parser.feed("P two") == []
    assert parser.stop_sequence == "STOP"
    assert parser.feed("three") == []
    assert parser.finish("four") == []


def test_held_text_comes_at_the_end() -> None:
    parser = OutputParser(stop=["STOP"])
    assert parser.feed("ST") == []
    assert parser.finish("A") == [TextDelta("STA")]
    assert parser.stop_sequence is None


@pytest.mark.parametrize("stops", [["ab", "b"], ["b", "ab"]])
def test_of_stops_that_end_together_the_longest_counts(stops: list[str]) -> None:
    parser = OutputParser(stop=stops)
    assert parser.feed("xab") == [TextDelta("x")]
    assert parser.stop_sequence == "ab"
