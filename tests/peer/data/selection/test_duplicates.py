"""Exact and near duplicates in several scripts, with bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from peer.config.data import Duplicates
from peer.data.selection.duplicates import ExactDuplicates, NearDuplicates, open_duplicates, shingle_hashes
from tests.support.many_scripts import BENGALI, ENGLISH

CHINESE = "社区一起训练一个语言模型,每个志愿者贡献自己的机器,所有人都能看到损失下降,并且最后得到同一个模型。"


def words(rng: np.random.Generator, count: int) -> list[str]:
    return [f"w{number}" for number in rng.integers(0, 5_000, count)]


@given(st.lists(st.lists(st.sampled_from(["a", "b", " a\n", "c", "অ", "\ud800"]), max_size=6), max_size=6))
def test_each_text_passes_once(blocks: list[list[str]]) -> None:
    """Within a block and from block to block; white space around a text does not count."""
    seen: set[str] = set()
    exact = ExactDuplicates(1_000)
    for block in blocks:
        expected = []
        for text in block:
            expected.append(text.strip() not in seen)
            seen.add(text.strip())
        assert exact.keep(block).tolist() == expected


def test_a_full_memory_lets_copies_pass_and_drops_nothing_new() -> None:
    """It forgets some of the older documents."""
    exact = ExactDuplicates(64)
    texts = [f"text {number}" for number in range(1_000)]
    assert exact.keep(texts).all()
    again = exact.keep(texts)
    assert 900 < again.sum() < 1_000
    near = NearDuplicates(20)
    assert near.keep(texts[:30]).tolist() == [True] * 30
    assert not near.keep(texts[25:30]).any()
    assert near.keep(texts[:5]).all()
    assert len(near._signatures) <= 20


@pytest.mark.parametrize("text", [ENGLISH, BENGALI, CHINESE])
def test_a_copy_with_other_marks_and_capitals_is_a_near_duplicate(text: str) -> None:
    """In scripts with spaces and without."""
    copy = "  " + text.upper().replace(",", " ;").replace("。", "!") + "!"
    assert NearDuplicates().keep([text, copy, "Something else entirely, of another kind, said briefly."]).tolist() == [
        True,
        False,
        True,
    ]


def test_what_has_most_shingles_in_common_is_a_near_duplicate_and_what_has_half_is_not() -> None:
    """A long text of which a word in a hundred is changed, and of which the second half is another."""
    rng = np.random.default_rng(0)
    text = words(rng, 1_000)
    changed = [*text[:500], "changed", *text[501:990], *words(rng, 10)]
    halved = [*text[:500], *words(rng, 500)]
    assert NearDuplicates().keep([" ".join(part) for part in (text, changed, halved)]).tolist() == [True, False, True]


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    """One long "word" would be one shingle."""
    assert len(shingle_hashes(CHINESE.replace(",", ""))) > 20
    assert len(shingle_hashes("")) == len(shingle_hashes("!!")) == len(shingle_hashes("two words")) == 1


@pytest.mark.parametrize(("kind", "kept"), [("exact", [True, True, False]), ("near", [True, False, False])])
def test_the_kinds_have_their_filters(kind: Duplicates, kept: list[bool]) -> None:
    """None has none."""
    keep = open_duplicates(kind)
    assert keep is not None
    assert keep([ENGLISH, f"{ENGLISH}!", ENGLISH]).tolist() == kept
    assert open_duplicates("none") is None
