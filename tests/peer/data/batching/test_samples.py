"""Special tokens, segments and labels around packed tokens."""

from __future__ import annotations

import numpy as np
import pytest

from peer.config.run import RunConfig
from peer.data.batching.packing import PackedSamples
from peer.data.batching.samples import Samples, framed_samples, join_samples, open_packer, pair_samples
from peer.data.tokenization.encoding import EncodedChunk
from peer.data.tokenization.special_tokens import SpecialIds

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
    assert samples.token_type_ids is not None
    assert samples.token_type_ids.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]]


def test_the_label_says_whether_the_pair_is_swapped() -> None:
    """0 is in order and 1 is swapped, as in transformers' ALBERT."""
    labels = pair_samples(PACKED, SPECIAL).sop_labels
    assert labels is not None
    assert labels.tolist() == [0, 1]


def test_a_text_of_its_own_has_one_segment_and_no_label() -> None:
    """[CLS] text [SEP], for masked language modelling alone."""
    samples = framed_samples(PACKED.tokens, SPECIAL)
    assert samples.input_ids.tolist() == [[2, 10, 11, 12, 13, 3], [2, 20, 21, 22, 23, 3]]
    assert samples.token_type_ids is None
    assert samples.sop_labels is None


@pytest.mark.parametrize(
    ("architecture", "objective", "first", "last", "special_places"),
    [
        ("albert", "mlm+sop", SPECIAL.cls, SPECIAL.sep, 3),
        ("albert", "mlm", SPECIAL.cls, SPECIAL.sep, 2),
        ("roberta", "mlm", SPECIAL.cls, SPECIAL.sep, 2),
        ("gpt2", "clm", 10, None, 0),
    ],
)
def test_the_family_says_what_stands_around_a_text(
    architecture: str, objective: str, first: int, last: int | None, special_places: int
) -> None:
    """Encoders read between [CLS] and [SEP]; GPT-2 reads text and nothing else, up to the last place."""
    run = {"model": {"architecture": architecture}, "objective": {"name": objective}, "data": {"sequence_length": 32}}
    packer = open_packer(RunConfig.from_mapping(run), SPECIAL, np.random.default_rng(0))
    ends = np.array([20, 40])
    samples = packer.pack(EncodedChunk(np.arange(10, 50, dtype=np.int32), ends, np.array([40])))
    assert packer.special_places == special_places
    assert samples.input_ids.shape == (1, 32)
    assert samples.input_ids[0, 0] == first
    assert samples.input_ids[0, -1] == (41 if last is None else last)
    assert packer.carried_tokens == 40 + (objective != "mlm+sop") - (32 - special_places)
    assert (samples.sop_labels is not None) == (objective == "mlm+sop")


def test_samples_can_be_divided_and_joined() -> None:
    """Two parts of the same samples, joined, are those samples again."""
    samples = pair_samples(PACKED, SPECIAL)
    joined = join_samples(samples[:1], samples[1:])
    assert isinstance(joined, Samples)
    assert len(joined) == 2
    assert (joined.input_ids == samples.input_ids).all()
    assert joined.sop_labels is not None
    assert joined.sop_labels.tolist() == [0, 1]


def test_texts_of_one_segment_can_be_joined() -> None:
    """What has neither segments nor labels has none when joined."""
    samples = framed_samples(PACKED.tokens, SPECIAL)
    joined = join_samples(samples[:1], samples[1:])
    assert joined.input_ids.tolist() == samples.input_ids.tolist()
    assert joined.token_type_ids is joined.sop_labels is None
