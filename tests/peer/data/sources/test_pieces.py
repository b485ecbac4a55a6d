"""Pieces of long documents: nothing is lost, none is too long, and no character is parted from its marks."""

from __future__ import annotations

import pytest
import regex
from hypothesis import given, strategies as st

from peer.data.sources.pieces import cut_bytes, cut_text

SEEN = ["a", "ক্ষি", "কা", "é", "e\u0301", "👨‍👩‍👧", "🇧🇩", "❤️", "র‍্য", " ", "กิ"]  # as a reader sees characters
LIMIT = 64


@given(st.lists(st.sampled_from([*SEEN, "\n", "\n\n"]), max_size=200), st.integers(26, 90))
def test_pieces_together_are_the_text_and_part_no_character(characters: list[str], limit: int) -> None:
    """However long the text and the limit are."""
    text = "".join(characters)
    pieces = list(cut_text(text, limit))
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= limit for piece in pieces)
    ends = {match.end() for match in regex.finditer(r"\X", text)} | {0}
    at = 0
    for piece in pieces:
        at += len(piece)
        assert at in ends


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("one\n\ntwo\nthree four five six seven eight", "one\n\n"),
        ("one two three\nfour five six seven eight nine", "one two three\n"),
        ("one two three four five six seven eight", "one two three four "),
        ("কা" * 20, "কা" * 3),
    ],
    ids=["a paragraph", "a line", "a word", "a letter with its vowel sign"],
)
def test_a_piece_ends_where_the_text_has_its_greatest_break(text: str, piece: str) -> None:
    """In the second half of what fits, so that pieces are not short."""
    limit = 8 if "\n\ntwo" in text else 20
    assert next(cut_text(text, limit)) == piece


def test_bytes_that_are_no_text_are_cut_all_the_same() -> None:
    """Marks without end, and what is not UTF-8: each piece has a byte at least, and none is too long."""
    for content in (b"\x80" * 500, b"\xf0" * 500, b"a" + "\u0301".encode() * 300, b"\xff\n" * 300):
        pieces = list(cut_bytes(content, LIMIT))
        assert b"".join(pieces) == content
        assert all(0 < len(piece) <= LIMIT for piece in pieces)


def test_a_character_of_which_a_byte_is_still_to_come_is_not_cut() -> None:
    """The text may be what was read of a file so far, and end anywhere."""
    content = ("কা" * 20).encode()
    for end in range(21, 40):
        assert next(cut_bytes(content[:end], 20)).decode() in ("কা" * 2, "কা" * 3)


@given(st.text(min_size=40, max_size=90), st.text(max_size=40))
def test_pieces_do_not_depend_on_text_far_behind_them(text: str, more: str) -> None:
    """So a file that is read in chunks is cut as if it were read at once."""
    whole = list(cut_bytes((text + "x" + more).encode(), 16))
    first = list(cut_bytes((text + "x").encode(), 16))
    assert whole[: len(first) - 1] == first[:-1]
