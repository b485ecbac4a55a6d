"""The ids of the words that have come before, so that the tokenizer sees each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

MAX_WORDS = 300_000  # some hundred bytes each
WORDS_PER_LINE = 32  # new words go to the tokenizer in lines: a text of its own costs each word as much again
# Printable symbols that normalizers turn into a space: with one of them, words are not what they seem.
METASPACE, REPLACEMENT = "\u2581", "\ufffd"

Tokens = NDArray[np.int32]
Ints = NDArray[np.int64]


class _Numbers(dict[str, int]):
    """Numbers words in the order in which they are first asked for."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class WordMemory:
    """Tokenizes words, each once, for a tokenizer that treats the words of a text apart from each other.

    Its tables are arrays, so that a text of known words costs one look-up per word.
    """

    def __init__(self, tokenizer: Tokenizer, max_words: int = MAX_WORDS) -> None:
        self._tokenizer, self._max_words = tokenizer, max_words
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
            tokens, lengths = encode_words(self._tokenizer, words)
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


def encode_words(tokenizer: Tokenizer, words: list[str]) -> tuple[Tokens, Ints]:
    """All words' tokens (tokens,) and how many each has (words,), many words in one text.

    Where a token ends in its text says whose it is: within a word, or on the space before it.
    """
    lines = _lines(words)
    encodings = tokenizer.encode_batch([" ".join(words[line]) for line in lines], add_special_tokens=False)
    tokens, tokens_per_line = _flatten(encodings)
    # As if all words stood in one text, with a space after each.
    word_starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    line_starts = word_starts[[line.start for line in lines]]
    ends_in_lines = (end for encoding in encodings for _, end in encoding.offsets)
    token_ends = np.repeat(line_starts, tokens_per_line) + np.fromiter(ends_in_lines, np.int64, len(tokens))
    owners = np.searchsorted(word_starts, token_ends, "right") - 1
    return tokens, np.bincount(owners, minlength=len(words))


def is_plain(text: str) -> bool:
    """Whether a tokenizer sees no space in the text but its plain ones."""
    return text.isprintable() and METASPACE not in text and REPLACEMENT not in text


def _lines(words: list[str]) -> list[slice]:
    """Which words go to the tokenizer in one text: several where they are plain, others alone."""
    lines = []
    start = 0
    for index, word in enumerate(words):
        if not is_plain(word):
            lines += [slice(start, index), slice(index, index + 1)]
            start = index + 1
        elif index + 1 - start == WORDS_PER_LINE:
            lines.append(slice(start, index + 1))
            start = index + 1
    lines.append(slice(start, len(words)))
    return [line for line in lines if line.start < line.stop]


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> tuple[Tokens, Ints]:
    """All texts' tokens (tokens,) and how many each has (texts,)."""
    return _flatten(tokenizer.encode_batch_fast(texts, add_special_tokens=False))


def _flatten(encodings: list[Encoding]) -> tuple[Tokens, Ints]:
    ids = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths
