"""Dynamic masking, and labels where nothing is masked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models

from peer.data.batching.masking import Labelled, Masker, choose_words, next_tokens, take_while_they_fit
from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.words import WordStarts

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)

VOCABULARY = 1000


def mask(rows: list[list[int]], probability: float = 0.15, seed: int = 0) -> Labelled:
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


def words(lengths: list[list[int]]) -> np.ndarray:
    """(samples, length) whether a word begins, from the lengths of each sample's words."""
    return np.array([[place == 0 for length in row for place in range(length)] for row in lengths])


def chosen_words(
    lengths: list[list[int]], per_sample: int, reluctance: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """(samples, length) which tokens are chosen."""
    starts = words(lengths)
    if reluctance is None:
        reluctance = np.zeros(starts.shape, np.float32)
    positions = choose_words(reluctance, starts, per_sample, np.random.default_rng(seed))
    assert (np.diff(positions) > 0).all()
    chosen = np.zeros(starts.size, np.bool_)
    chosen[positions] = True
    return chosen.reshape(starts.shape)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    per_sample=st.integers(1, 30),
    seed=st.integers(0, 5),
)
def test_words_are_masked_whole_or_not_at_all(lengths: list[int], per_sample: int, seed: int) -> None:
    """No more tokens than there are to be, and room is left only where no whole word fits into it."""
    chosen = chosen_words([lengths, lengths[::-1]], per_sample, seed=seed)
    for row, row_lengths in zip(chosen, (lengths, lengths[::-1]), strict=True):
        whole = [part for part in np.split(row, np.cumsum(row_lengths)[:-1]) if len(part) <= per_sample]
        assert all(part.all() or not part.any() for part in whole)
        left = per_sample - int(row.sum())
        assert left >= 0
        assert all(part.all() or len(part) > left for part in whole)
        too_long = [part for part in np.split(row, np.cumsum(row_lengths)[:-1]) if len(part) > per_sample]
        assert left == 0 or all(part.all() for part in too_long)


def test_words_are_drawn_evenly_and_fill_the_share() -> None:
    """In samples of usual length every word has about the same chance, long or short, and the share is filled."""
    lengths = [[1, 2, 1, 1, 3, 1, 2, 1] * 10] * 3000
    chosen = chosen_words(lengths, per_sample=18)
    rates = chosen[:, words(lengths)[0]].mean(axis=0)
    by_length = [rates[np.array(lengths[0]) == length].mean() for length in (1, 2, 3)]
    assert (chosen.sum(axis=1) == 18).all()
    assert by_length == pytest.approx([0.15] * 3, abs=0.02)


def test_a_word_too_long_for_the_share_counts_as_its_tokens() -> None:
    """A run of text that the tokenizer does not cut, an address perhaps, still gives something to guess."""
    chosen = chosen_words([[50]], per_sample=8)
    assert chosen.sum() == 8


def test_whole_words_hold_no_special_token_and_unknown_ones_last() -> None:
    """A word with an unknown token is chosen only where there is no other, and special tokens never."""
    reluctance = np.array([[np.inf, 0, 1, 0, 0, np.inf], [np.inf, 1, 1, 1, 1, np.inf]], np.float32)
    chosen = chosen_words([[1, 2, 2, 1], [1, 1, 1, 2, 1]], per_sample=4, reluctance=reluctance)
    assert chosen[0].tolist() == [False, False, False, True, True, False]
    assert chosen[1].sum() in {1, 2}
    assert not chosen[1, [0, -1]].any()


def test_each_sample_takes_words_in_order_and_passes_over_what_does_not_fit() -> None:
    """A sample's room is its own, and a long word does not end the choice."""
    lengths, owner = np.array([2, 3, 4, 1, 5, 1]), np.array([0, 0, 0, 0, 1, 1])
    taken = take_while_they_fit(np.array([1, 2, 0, 3, 4, 5]), lengths, owner, room=np.array([6, 1]))
    assert taken.tolist() == [True, True, False, True, False, True]


def test_a_masker_with_word_starts_masks_whole_words() -> None:
    """Given a tokenizer's words, every word's tokens get labels together, up to the same number as without."""
    vocabulary = {name: index for index, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    vocabulary |= {f"word{index}": 5 + index for index in range(40)} | {f"##{index}": 45 + index for index in range(40)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    masker = Masker(len(vocabulary), SPECIAL, 0.15, WordStarts(tokenizer, SPECIAL))
    rng = np.random.default_rng(0)
    text = np.stack([rng.integers(5, 45, (200, 50)), rng.integers(45, 85, (200, 50))], axis=2).reshape(200, 100)
    frame = np.full((200, 1), SPECIAL.sep)
    ids = np.hstack([frame, text, frame]).astype(np.int32)
    masked = masker.mask(ids, special_places=2, rng=rng)
    places = masked.positions.reshape(200, 14) % 102  # 15 tokens are no whole number of words of two
    assert (places[:, ::2] % 2 == 1).all()
    assert (places[:, 1::2] == places[:, ::2] + 1).all()
    assert (masked.labels == ids.reshape(-1)[masked.positions]).all()


def test_every_place_but_the_last_has_the_next_token_to_guess() -> None:
    """Positions rise through all samples, and no sample has to guess another's first token."""
    labelled = next_tokens(np.array([[10, 11, 12], [20, 21, 22]], np.int32))
    assert labelled.input_ids.tolist() == [[10, 11, 12], [20, 21, 22]]
    assert labelled.positions.tolist() == [0, 1, 3, 4]
    assert labelled.labels.tolist() == [11, 12, 21, 22]
    assert labelled.input_ids.dtype == labelled.positions.dtype == labelled.labels.dtype == np.int64
