"""Dynamic masking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.data.masking import Masked, Masker
from peer.data.special_tokens import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
VOCABULARY = 1000


def mask(rows: list[list[int]], probability: float = 0.15, seed: int = 0) -> Masked:
    """These samples masked."""
    masker = Masker(VOCABULARY, SPECIAL, probability)
    return masker.mask(np.array(rows, np.int32), special_places=3, rng=np.random.default_rng(seed))


def sample(words: list[int]) -> list[int]:
    """[CLS] words [SEP] a word [SEP]"""
    return [SPECIAL.cls, *words, SPECIAL.sep, 999, SPECIAL.sep]


def many_samples(count: int = 200, words: int = 99) -> list[list[int]]:
    """Samples of random ordinary words."""
    rng = np.random.default_rng(7)
    return [sample(rng.integers(5, VOCABULARY, words).tolist()) for _ in range(count)]


@given(words=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40), probability=st.floats(0.01, 0.9))
def test_special_tokens_are_never_masked_and_never_put_in(words: list[int], probability: float) -> None:
    """Neither [CLS], [SEP], [PAD] nor [MASK] is to be guessed, wherever it stands, and at least one token is."""
    row = sample(words)
    masked = mask([row, row], probability)
    assert set(masked.labels.tolist()).isdisjoint({SPECIAL.pad, SPECIAL.cls, SPECIAL.sep, SPECIAL.mask})
    assert {position // len(row) for position in masked.positions.tolist()} == {0, 1}
    replaced = set(masked.input_ids.reshape(-1)[masked.positions].tolist()) - set(row)
    assert replaced.isdisjoint({SPECIAL.pad, SPECIAL.unk, SPECIAL.cls, SPECIAL.sep})


def test_labels_are_the_original_tokens_and_nothing_else_changes() -> None:
    """Putting the labels back gives the samples; positions rise and none comes twice."""
    rows = many_samples(10)
    masked = mask(rows)
    restored = masked.input_ids.copy().reshape(-1)
    restored[masked.positions] = masked.labels
    assert restored.reshape(masked.input_ids.shape).tolist() == rows
    assert (np.diff(masked.positions) > 0).all()


def test_every_sample_has_the_same_number_of_masked_tokens() -> None:
    """Exactly the rounded share of a sample's text is masked, so that every batch is the same work."""
    rows = many_samples(50)
    counts = np.bincount(mask(rows).positions // len(rows[0]), minlength=50)
    assert (counts == 15).all()


def test_even_a_tiny_share_masks_one_token_of_each_sample() -> None:
    """No sample is without something to guess."""
    assert len(mask([sample([10, 11])] * 5, probability=0.01).positions) == 5


def test_eight_tenths_are_masked_one_tenth_random_one_tenth_kept() -> None:
    """The shares of the paper, over many tokens."""
    masked = mask(many_samples(2000))
    now = masked.input_ids.reshape(-1)[masked.positions]
    is_mask, kept = now == SPECIAL.mask, now == masked.labels
    assert is_mask.mean() == pytest.approx(0.8, abs=0.01)
    assert kept.mean() == pytest.approx(0.1, abs=0.01)
    random = now[~is_mask & ~kept]
    assert (random.min(), random.max()) == (5, VOCABULARY - 1)


def test_unknown_tokens_are_masked_only_where_there_is_nothing_else() -> None:
    """An unknown token teaches nothing, but no sample goes without."""
    some = mask([[SPECIAL.cls, 1, 1, 1, 50, SPECIAL.sep, 1, SPECIAL.sep]] * 3, probability=0.9)
    assert some.labels.tolist() == [50] * 3
    assert mask([[SPECIAL.cls, 1, SPECIAL.sep, 1, SPECIAL.sep]] * 3).labels.tolist() == [1] * 3


def test_masks_differ_from_time_to_time_and_repeat_with_the_seed() -> None:
    """The same samples are masked differently with another state of the generator, and equally with the same."""
    rows = many_samples(3)
    assert mask(rows, seed=1).positions.tolist() == mask(rows, seed=1).positions.tolist()
    assert mask(rows, seed=1).positions.tolist() != mask(rows, seed=2).positions.tolist()
