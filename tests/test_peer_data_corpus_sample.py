"""An even, bounded sample of what passes by."""

from __future__ import annotations

import numpy as np

from peer.data.corpus_sample import CorpusSample


def sample_of(documents: list[str], max_documents: int, max_characters: int, seed: int = 0) -> list[str]:
    sample = CorpusSample(max_documents, max_characters, np.random.default_rng(seed))
    for start in range(0, len(documents), 7):
        sample.add(documents[start : start + 7])
    return sample.documents


def test_a_short_corpus_is_kept_whole() -> None:
    """Below both bounds nothing is left out."""
    assert sorted(sample_of(["a", "b", "c"], 10, 100)) == ["a", "b", "c"]


def test_the_bounds_hold() -> None:
    """So many documents and so many characters at most, but one document always."""
    documents = [f"{number:04}" for number in range(1_000)]
    assert len(sample_of(documents, 50, 10_000)) == 50
    assert len(sample_of(documents, 500, 101)) == 25
    assert len(sample_of(["long"], 10, 1)) == 1


def test_every_document_has_the_same_chance() -> None:
    """Early and late ones are drawn alike."""
    documents = [str(number) for number in range(100)]
    drawn = [int(text) for seed in range(200) for text in sample_of(documents, 10, 10_000, seed)]
    assert len(drawn) == 2_000
    assert 44 < float(np.mean(drawn)) < 55
