"""Rare words stay away from a trainer, so that the memory it needs does not grow with the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peer.data.rare_words import RareWordFilter


@given(st.lists(st.text(max_size=80), max_size=5))
def test_a_short_text_passes_as_it_is(texts: list[str]) -> None:
    """White space too; only what follows the last word is no part of one."""
    unlimited = RareWordFilter(free_words=1000)
    assert [unlimited(text) for text in texts] == [text.rstrip() for text in texts]


def test_once_there_are_many_words_a_new_one_has_to_come_again() -> None:
    """Twice after the first `free_words`, four times after as many more; those let through before stay welcome."""
    rare = RareWordFilter(free_words=2)
    assert rare("one two") == "one two"
    assert rare("three one  three three") == " one  three three"
    assert rare("four four") == " four"
    assert [rare("five") for _ in range(5)] == ["", "", "", "five", "five"]
    assert rare("one two three four") == "one two three four"
    assert rare.let_through == 5


def test_few_of_a_million_words_are_let_through() -> None:
    """The number grows with the logarithm of the text's length."""
    rare = RareWordFilter(free_words=1000)
    for start in range(0, 300_000, 1000):
        rare(" ".join(map(str, range(start, start + 1000))))
    assert rare.let_through < 8_000
    frequent = " ".join(f"frequent{number}" for number in range(100))
    for _ in range(200):
        passed = rare(frequent)
    assert passed == frequent
