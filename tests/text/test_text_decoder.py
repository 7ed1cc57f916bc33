from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ds4trio.text.decoder import Utf8StreamDecoder

#: Each byte is a token; 256 is not in the vocabulary.
TABLE = {byte: bytes([byte]) for byte in range(256)}


def groups(draw: st.DrawFn, ids: list[int]) -> list[list[int]]:
    out: list[list[int]] = []
    while ids:
        size = draw(st.integers(0, len(ids)))
        out.append(ids[:size])
        ids = ids[size:]
    return out


@st.composite
def grouped(draw: st.DrawFn) -> tuple[bytes, list[list[int]]]:
    """Bytes, and the ids that spell them in some grouping."""
    utf8 = st.text().map(str.encode)
    data = b"".join(draw(st.lists(st.one_of(st.binary(max_size=6), utf8), max_size=6)))
    return data, groups(draw, list(data))


@given(grouped())
def test_text_is_the_bytes_whole_however_grouped(case: tuple[bytes, list[list[int]]]) -> None:
    data, pieces = case
    decoder = Utf8StreamDecoder(TABLE)
    text = "".join([decoder.feed(piece) for piece in pieces]) + decoder.finish()
    assert text == data.decode("utf-8", "replace")


@given(grouped())
def test_a_first_space_is_dropped_however_grouped(case: tuple[bytes, list[list[int]]]) -> None:
    data, pieces = case
    decoder = Utf8StreamDecoder(TABLE, drop_space=True)
    text = "".join([decoder.feed(piece) for piece in pieces]) + decoder.finish()
    assert text == data.removeprefix(b" ").decode("utf-8", "replace")


def test_a_character_comes_only_when_it_is_complete() -> None:
    decoder = Utf8StreamDecoder(TABLE)
    assert [decoder.feed([byte]) for byte in "a☕é".encode()] == ["a", "", "", "☕", "", "é"]
    assert decoder.finish() == ""


def test_ids_that_add_nothing_do_not_part_a_character() -> None:
    decoder = Utf8StreamDecoder(TABLE)
    first, second = "é".encode()
    assert decoder.feed([first, 256, -1]) == ""
    assert decoder.feed([second]) == "é"


def test_a_character_cut_short_is_replaced_at_the_end() -> None:
    decoder = Utf8StreamDecoder(TABLE)
    assert decoder.feed(list("☕".encode())[:2]) == ""
    assert decoder.finish() == "\ufffd"


def test_visible_ids_are_text_in_their_place() -> None:
    first, second = "é".encode()
    decoder = Utf8StreamDecoder(TABLE, visible={256: b"<tool_call>"})
    assert decoder.feed([97, 256]) == "a<tool_call>"
    assert decoder.feed([first, 257, second, 256]) == "é<tool_call>"
