"""Special tokens, segments and labels around packed tokens."""

from __future__ import annotations

import numpy as np

from peer.data.packing import PackedSamples
from peer.data.samples import Samples, join_samples, pair_samples, single_samples
from peer.data.special_tokens import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
PACKED = PackedSamples(
    tokens=np.array([[10, 11, 12, 13], [20, 21, 22, 23]], np.int32),
    first_lengths=np.array([1, 3]),
    swapped=np.array([False, True]),
)


def test_a_pair_has_a_separator_after_each_segment() -> None:
    """[CLS] A [SEP] B [SEP], with B and its separator marked as the second segment."""
    samples = pair_samples(PACKED, SPECIAL)
    assert samples.input_ids.tolist() == [[2, 10, 3, 11, 12, 13, 3], [2, 20, 21, 22, 3, 23, 3]]
    assert samples.token_type_ids.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]]


def test_the_label_says_whether_the_pair_is_swapped() -> None:
    """0 is in order and 1 is swapped, as in transformers' ALBERT."""
    labels = pair_samples(PACKED, SPECIAL).sop_labels
    assert labels is not None
    assert labels.tolist() == [0, 1]


def test_a_single_text_has_one_segment_and_no_label() -> None:
    """[CLS] text [SEP], for masked language modelling alone."""
    samples = single_samples(PACKED, SPECIAL)
    assert samples.input_ids.tolist() == [[2, 10, 11, 12, 13, 3], [2, 20, 21, 22, 23, 3]]
    assert not samples.token_type_ids.any()
    assert samples.sop_labels is None


def test_samples_can_be_divided_and_joined() -> None:
    """Two parts of the same samples, joined, are those samples again."""
    samples = pair_samples(PACKED, SPECIAL)
    joined = join_samples(samples[:1], samples[1:])
    assert isinstance(joined, Samples)
    assert len(joined) == 2
    assert (joined.input_ids == samples.input_ids).all()
    assert joined.sop_labels is not None
    assert joined.sop_labels.tolist() == [0, 1]
