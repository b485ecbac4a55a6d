"""Keeps the rare words of a long text from a tokenizer's trainer, whose memory grows with every distinct word.

Half of the distinct words of a text come only once, and a long text has millions of them that no vocabulary is the
better for. So a word is let through from its n-th coming on, where n doubles with every `free_words` that have been let
through: all words of a short text, of a long one those that count.
"""

from __future__ import annotations

import re
from zlib import crc32

SLOTS = 1 << 24  # words share counters, in 16 MB; that lets a rare one through now and then
LET_THROUGH = 255
_WORDS = re.compile(r"\s*\S+")  # a word with the white space before it


class RareWordFilter:
    """Counts the words that it sees; the same texts in the same order always give the same result."""

    def __init__(self, free_words: int) -> None:
        self._free_words = free_words
        self._counts = bytearray(SLOTS)
        self.let_through = 0  # distinct words

    def __call__(self, text: str) -> str:
        """The text without its rare words."""
        counts, kept = self._counts, []
        for word in _WORDS.findall(text):
            slot = crc32(word.lstrip().encode()) % SLOTS
            if counts[slot] == LET_THROUGH or self._comes_often_enough(slot):
                kept.append(word)
        return "".join(kept)

    def _comes_often_enough(self, slot: int) -> bool:
        """Count a word that was not let through before."""
        doublings = min(self.let_through // self._free_words, 7)  # a counter holds no more than 2^7 and the mark
        if self._counts[slot] + 1 < 1 << doublings:
            self._counts[slot] += 1
            return False
        self._counts[slot] = LET_THROUGH
        self.let_through += 1
        return True
