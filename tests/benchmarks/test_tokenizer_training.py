"""The made-up text that the memory of training is measured on."""

from __future__ import annotations

import numpy as np

from benchmarks.tokenizer_training import made_up_documents


def test_the_text_has_the_wanted_size_and_new_words_keep_coming() -> None:
    """By the square root of its length at least, as on the web; the same text for the same generator."""
    documents = list(made_up_documents(2_000_000, np.random.default_rng(0)))
    assert 2_000_000 <= sum(map(len, documents)) < 2_010_000
    words = " ".join(documents).lower().replace(".", "").split()
    half = len(set(words[: len(words) // 2]))
    assert len(set(words)) > 1.5 * half > len(words) ** 0.5
    assert documents[0] == next(made_up_documents(1, np.random.default_rng(0)))
