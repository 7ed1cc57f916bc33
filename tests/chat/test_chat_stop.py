from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.stop import StopStrings

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3)
TEXTS = st.text("ab\n", max_size=30)


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
    reader = StopStrings(stops)
    said = "".join([reader.feed(text[a:b]) for a, b in pairwise(borders)]) + reader.flush()
    assert (said, reader.found) == naive(text, stops)


@given(text=TEXTS, stops=STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    reader = StopStrings(stops)
    said, known = "", ""
    for char in text:
        known += char
        said += reader.feed(char)
        if reader.found is not None:
            return
        held = known[len(said) :]
        beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        longest = max((b for b in beginnings if known.endswith(b)), key=len, default="")
        assert held == longest


def test_without_stop_strings_text_passes_at_once() -> None:
    reader = StopStrings()
    assert [reader.feed("a"), reader.feed(""), reader.flush()] == ["a", "", ""]


def test_nothing_follows_a_stop_string() -> None:
    reader = StopStrings(["STOP"])
    assert [reader.feed("one STO"), reader.feed("P two"), reader.feed("three")] == ["one ", "", ""]
    assert (reader.found, reader.flush()) == ("STOP", "")


@given(before=TEXTS, after=TEXTS, stops=STOPS)
def test_an_interruption_parts_texts(before: str, after: str, stops: list[str]) -> None:
    reader = StopStrings(stops)
    said = reader.feed(before) + reader.flush()
    assert (said, reader.found) == naive(before, stops)
    if reader.found is None:
        said = reader.feed(after) + reader.flush()
        assert (said, reader.found) == naive(after, stops)


@pytest.mark.parametrize("stops", [["ab", "b"], ["b", "ab"]])
def test_of_stops_that_end_together_the_longest_counts(stops: list[str]) -> None:
    reader = StopStrings(stops)
    assert (reader.feed("xab"), reader.found) == ("x", "ab")
