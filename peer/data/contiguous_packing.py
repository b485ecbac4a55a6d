"""Chunks of tokens to samples cut from one plain run of text, for objectives without sentence order.

As RoBERTa's full sentences (Liu et al. 2019, arXiv 1907.11692, section 4.2): documents follow each other, each with a
separator after it, and the run is cut wherever a sample is full. What is left starts the next chunk's samples. So no
token is lost, nothing is padded, and nearly all context is the text's own.
"""

from __future__ import annotations

import numpy as np

from peer.data.encoding import EncodedChunk
from peer.data.packing import Tokens


class ContiguousPacker:
    """Packs chunk after chunk; keeps the tokens that do not fill a sample yet."""

    def __init__(self, capacity: int, separator: int, rng: np.random.Generator) -> None:
        self._capacity, self._separator, self._rng = capacity, separator, rng
        self.carried: Tokens = np.empty(0, np.int32)  # always shorter than `capacity`

    def pack(self, chunk: EncodedChunk) -> Tokens:
        """All samples that the carried tokens and this chunk fill, in random order  # (samples, capacity)"""
        run = np.insert(chunk.tokens, chunk.document_ends, self._separator)
        run = np.concatenate([self.carried, run])
        full = len(run) - len(run) % self._capacity
        self.carried = run[full:]
        rows = run[:full].reshape(-1, self._capacity)
        return rows[self._rng.permutation(len(rows))]
