"""An even sample of a corpus that passes by, bounded in documents and in characters: for estimates.

Every document draws a random key, and those with the smallest keys stay: so it does not matter how long the corpus is.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np


class CorpusSample:
    """Keeps some of what it is shown."""

    def __init__(self, max_documents: int, max_characters: int, rng: np.random.Generator) -> None:
        self._max_documents, self._max_characters, self._rng = max_documents, max_characters, rng
        self._kept: list[tuple[float, str]] = []  # a heap by the keys' negatives: the greatest key comes off first
        self._characters = 0
        self._border = 1.0  # keys from here on were turned away

    def add(self, documents: Sequence[str]) -> None:
        """Show it some more."""
        keys = self._rng.random(len(documents))
        for index in np.flatnonzero(keys < self._border).tolist():
            if keys[index] < self._border:  # which the ones before it may have moved
                self._take(float(keys[index]), documents[index])

    @property
    def documents(self) -> list[str]:
        """What it holds, in an order of chance."""
        return [document for _, document in sorted(self._kept)]

    def _take(self, key: float, document: str) -> None:
        heappush(self._kept, (-key, document))
        self._characters += len(document)
        while len(self._kept) > 1 and self._is_full():
            negative, dropped = heappop(self._kept)
            self._border = -negative
            self._characters -= len(dropped)

    def _is_full(self) -> bool:
        return len(self._kept) > self._max_documents or self._characters > self._max_characters
