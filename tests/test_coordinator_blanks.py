"""Sentences as visitors write them."""

from __future__ import annotations

import pytest

from auth.errors import RequestError
from coordinator.blanks import MAX_CHARACTERS, clean_sentence


@pytest.mark.parametrize(
    ("written", "masked", "clean"),
    [
        ("Many hands make ___ work.", True, "Many hands make [MASK] work."),
        ("  a <mask>\n b\t[mask] ", True, "a [MASK] b [MASK]"),
        ("e\u0301 ____", True, "\u00e9 [MASK]"),
        ("Once upon a\x00 time", False, "Once upon a time"),
        ("অনেক [MASK] কাজ", True, "অনেক [MASK] কাজ"),
    ],
)
def test_equal_sentences_have_one_form(written: str, masked: bool, clean: str) -> None:
    """However a blank is spelt, a letter composed and space put in."""
    assert clean_sentence(written, masked=masked) == clean
    assert clean_sentence(clean, masked=masked) == clean


@pytest.mark.parametrize(
    ("written", "masked", "why"),
    [
        (" \n", True, "empty"),
        ("no blank here", True, "0 blanks"),
        ("___ a " * 5, True, "5 blanks"),
        ("___", True, "nothing but blanks"),
        ("___ ___", True, "nothing but blanks"),
        ("Once ___ a time", False, "fills no blanks"),
        ("a" * (MAX_CHARACTERS + 1), False, "301 characters"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(written: str, masked: bool, why: str) -> None:
    """With the number that is wrong, and what is allowed."""
    with pytest.raises(RequestError, match=why):
        clean_sentence(written, masked=masked)
