"""How sentences are cut into words, and what a tokenizer makes of these."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from peer.data.words import WORDS_PER_LINE, Cut, find_cut, sums
from tests.support.small_tokenizers import (
    PROSE,
    byte_tokenizer,
    marked_space_tokenizer,
    phrase_tokenizer,
    word_tokenizer,
)

AT_SPACES = Cut(takes_space=False, any_gap=True)
BEFORE_SPACES = Cut(takes_space=True, any_gap=True)


@pytest.mark.parametrize(
    ("tokenizer", "cut"),
    [
        (word_tokenizer(), AT_SPACES),
        (marked_space_tokenizer(), Cut(takes_space=False, any_gap=False)),
        (byte_tokenizer(), BEFORE_SPACES),
        (byte_tokenizer(add_prefix_space=True), Cut(takes_space=False, any_gap=False)),
        (phrase_tokenizer(), None),
    ],
)
def test_the_cut_is_found_by_trying(tokenizer: Tokenizer, cut: Cut | None) -> None:
    """Whether spaces belong to words, and whether one is as good as two, follows from the tokens; some have no cut."""
    assert find_cut(tokenizer, [*PROSE, "the cat sat on the mat"]) == cut


def test_a_script_without_spaces_is_not_cut() -> None:
    """Its sentences would be words that never come twice."""
    assert find_cut(word_tokenizer(), ["我喜欢猫。", "你好吗？", "第二 句话。"]) is None


@pytest.mark.parametrize(
    ("cut", "sentence", "words"),
    [
        (AT_SPACES, "one  two\nthree", ["one", "two", "three"]),
        (BEFORE_SPACES, "one  two\nthree", ["one", "  two", "\nthree"]),
        (Cut(takes_space=False, any_gap=False), "one two", ["one", "two"]),
        (Cut(takes_space=False, any_gap=False), "one  two", ["one  two"]),
        (Cut(takes_space=True, any_gap=False), "one\ntwo", ["one\ntwo"]),
        (AT_SPACES, "one\u00a0two three", ["one\u00a0two three"]),
        (BEFORE_SPACES, "one\u2581two three", ["one\u2581two three"]),
    ],
)
def test_sentences_are_cut_where_the_tokenizer_allows(cut: Cut, sentence: str, words: list[str]) -> None:
    """A sentence with other spaces than those that were tried stays whole, and does not keep its neighbours so."""
    assert cut.words([sentence]) == [words]
    assert cut.words(["a b", sentence])[1] == words
    assert list(map(len, cut.words(["a b", sentence]))) == [2, len(words)]


@pytest.mark.parametrize("count", [1, WORDS_PER_LINE - 1, WORDS_PER_LINE, WORDS_PER_LINE + 1, 100])
@pytest.mark.parametrize(
    ("tokenizer", "cut", "words"),
    [
        (word_tokenizer(), AT_SPACES, ["the", "☃", "cat", "a\u200bb", "´", "1a1", "খাই।"]),
        (byte_tokenizer(), BEFORE_SPACES, ["the", " ☃", " cat", "a\u200bb", "\n´", "  1a1", " খাই।", "x"]),
    ],
)
def test_words_that_share_a_line_get_their_own_tokens(
    tokenizer: Tokenizer, cut: Cut, words: list[str], count: int
) -> None:
    """However many words are tokenized together, each has the tokens that it has alone."""
    words = (words * (count // len(words) + 1))[:count]
    tokens, lengths = cut.encode(tokenizer, words)
    apart = [tokenizer.encode(word, add_special_tokens=False).ids for word in words]
    assert lengths.tolist() == list(map(len, apart))
    assert tokens.tolist() == list(chain.from_iterable(apart))


@given(st.lists(st.lists(st.integers(0, 5))))
def test_sums_are_by_group(groups: list[list[int]]) -> None:
    """Each group's own, empty ones included."""
    values = np.array(list(chain.from_iterable(groups)), np.int64)
    assert sums(values, groups).tolist() == list(map(sum, groups))
