"""What guessing by frequency loses."""

from __future__ import annotations

import math

import pytest
import torch

from peer.data.batches import Batch
from peer.data.special_tokens import SpecialIds
from peer.unigram import unigram_loss

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


def batch(ids: list[int], labels: list[int]) -> Batch:
    """One sample, whose first places are predicted."""
    places = torch.arange(len(labels))
    return Batch(torch.tensor([ids]), None, None, places, torch.tensor(labels), None)


def test_frequencies_are_those_of_text() -> None:
    """Tokens that are equally frequent lose the logarithm of their number; marks and masks count for nothing."""
    ids = [2, *([4] * 500), *([5, 6, 7, 8] * 1000), 3]
    assert unigram_loss(batch(ids, [5, 6, 7, 8] * 100), 9, SPECIAL) == pytest.approx(math.log(4), abs=0.01)


def test_a_rare_token_costs_more_and_no_token_everything() -> None:
    """One that the text does not have is possible all the same."""
    ids = [5] * 1000
    assert unigram_loss(batch(ids, [5] * 10), 9, SPECIAL) < 0.05
    assert 5 < unigram_loss(batch(ids, [8]), 9, SPECIAL) < 8
