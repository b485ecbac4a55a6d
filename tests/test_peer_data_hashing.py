"""The decisions that all peers must take alike."""

from __future__ import annotations

import numpy as np

from peer.data.hashing import document_hash, uniform


def test_hash_is_the_same_everywhere() -> None:
    """The value is fixed for ever: a changed hash would let held-out documents into training."""
    assert document_hash("ক খ গ", "validation") == document_hash("  ক খ গ\n", "validation") == 0x6690A965301B8540


def test_salts_are_independent() -> None:
    """What one decision drops says nothing about another's."""
    texts = [f"document {number}" for number in range(4000)]
    first, second = ([uniform(text, salt) for text in texts] for salt in ("one", "two"))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_numbers_are_uniform() -> None:
    """A share of the documents is a share of the numbers."""
    numbers = [uniform(f"document {number}", "share") for number in range(4000)]
    assert np.allclose(np.quantile(numbers, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.03)
    assert 0 <= min(numbers) <= max(numbers) < 1
