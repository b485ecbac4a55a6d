"""The ids of the words that have come before, so that the tokenizer sees each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
from tokenizers import Tokenizer

from peer.data.words import Cut, Ints, Tokens

MAX_WORDS = 300_000  # some hundred bytes each


class _Numbers(dict[str, int]):
    """Numbers words in the order in which they are first asked for."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class WordMemory:
    """Tokenizes words, each once, for a tokenizer that treats the words of a text apart from each other.

    Its tables are arrays, so that a text of known words costs one look-up per word.
    """

    def __init__(self, tokenizer: Tokenizer, cut: Cut, max_words: int = MAX_WORDS) -> None:
        self._tokenizer, self.cut, self._max_words = tokenizer, cut, max_words
        self._numbers = _Numbers()
        self._tokens: Tokens = np.empty(0, np.int32)  # of all known words, in the order of their numbers
        self._ends: Ints = np.zeros(1, np.int64)  # (words + 1,): word i has the tokens from [i] to [i + 1]

    def encode(self, words: Sequence[str]) -> tuple[Tokens, Ints]:
        """All words' tokens (tokens,) and how many each has (words,)."""
        known = len(self._numbers)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        self._learn(list(islice(self._numbers, known, None)))
        starts = self._ends[numbers]
        lengths = self._ends[numbers + 1] - starts
        ends = np.cumsum(lengths)
        tokens = self._tokens[np.repeat(starts - (ends - lengths), lengths) + np.arange(lengths.sum())]
        self._forget()
        return tokens, lengths

    def _learn(self, words: list[str]) -> None:
        """Append new words to the tables."""
        if words:
            tokens, lengths = self.cut.encode(self._tokenizer, words)
            self._tokens = np.concatenate([self._tokens, tokens])
            self._ends = np.concatenate([self._ends, self._ends[-1] + np.cumsum(lengths)])

    def _forget(self) -> None:
        """Keep the older half of too many words: frequent words come early."""
        if len(self._numbers) <= self._max_words:
            return
        kept = self._max_words // 2
        self._numbers = _Numbers(islice(self._numbers.items(), kept))
        self._ends = self._ends[: kept + 1].copy()
        self._tokens = self._tokens[: self._ends[-1]].copy()
