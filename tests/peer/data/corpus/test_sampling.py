"""Sampling of a corpus: the sample is even and bounded, and its files can be read again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from peer.data.corpus.sampling import NAMES, CorpusSample, Packing, open_writer


@pytest.mark.parametrize("packing", ["none", "gz", "zst"])
def test_each_packing_holds_a_line_for_a_document(tmp_path: Path, packing: Packing) -> None:
    """Whatever is in the text; half a surrogate pair becomes a question mark."""
    texts = ["one\nline", "আমি", "\u2028 odd", "\ud800"]
    with open_writer(tmp_path, packing) as write:
        write(texts[:2])
        write(texts[2:])
    path = tmp_path / NAMES[packing]
    with {"none": open, "gz": gzip.open, "zst": zstandard.open}[packing](path, "rb") as file:
        lines = file.read().decode().split("\n")[:-1]
    assert [json.loads(line)["text"] for line in lines] == [*texts[:3], "?"]


def sample_of(documents: list[str], max_documents: int, max_characters: int, seed: int = 0) -> list[str]:
    sample = CorpusSample(max_documents, max_characters, np.random.default_rng(seed))
    for start in range(0, len(documents), 7):
        sample.add(documents[start : start + 7])
    return sample.documents


def test_the_bounds_hold() -> None:
    """So many documents and so many characters at most, but one document always; below both all are kept."""
    documents = [f"{number:04}" for number in range(1_000)]
    assert sorted(sample_of(documents, 1_000, 10_000)) == documents
    assert len(sample_of(documents, 50, 10_000)) == 50
    assert len(sample_of(documents, 500, 101)) == 25
    assert len(sample_of(["long"], 10, 1)) == 1


def test_every_document_has_the_same_chance() -> None:
    """Early and late ones are drawn alike."""
    documents = [str(number) for number in range(100)]
    drawn = [int(text) for seed in range(200) for text in sample_of(documents, 10, 10_000, seed)]
    assert len(drawn) == 2_000
    assert 44 < float(np.mean(drawn)) < 55
