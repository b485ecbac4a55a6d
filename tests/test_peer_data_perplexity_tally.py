"""Counting documents by perplexity."""

from __future__ import annotations

import numpy as np
import pytest

from peer.data.perplexity_tally import PerplexityTally


def test_documents_are_counted_by_quartile_and_in_bins() -> None:
    """What lies beyond the picture, or has no perplexity, counts in the last quartile and in no bin."""
    sample = np.linspace(1, 101, 1_001)
    tally = PerplexityTally(sample, (26.0, 51.0, 76.0))
    perplexities = np.array([10.0, 30.0, 60.0, 90.0, 5_000.0, np.inf])
    for _ in range(2):
        tally.add(perplexities, np.full(6, 0.5), np.array([True, False, True, False, False, False]))
    assert tally.parts["before"].tolist() == [2, 2, 2, 6]
    assert tally.parts["kept"].tolist() == [2, 0, 2, 0]
    assert tally.parts["expected"].tolist() == [1, 1, 1, 3]
    assert (tally.documents, tally.kept) == (12, 4)
    assert tally.bins["before"].sum() == 8
    assert (tally.density("kept") * np.diff(tally.edges)).sum() == pytest.approx(1)


def test_a_corpus_of_one_perplexity_can_be_counted() -> None:
    """And one of which nothing is kept."""
    tally = PerplexityTally(np.full(5, 7.0), (7.0, 7.0, 7.0))
    tally.add(np.full(5, 7.0), np.zeros(5), np.zeros(5, np.bool_))
    assert tally.density("before").sum() > 0
    assert tally.density("kept").sum() == 0
