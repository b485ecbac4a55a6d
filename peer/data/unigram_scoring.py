"""Scoring by the probabilities that a Unigram tokenizer gives its pieces: needs no model but the run's tokenizer.

Weaker than a model of word order, yet it knows the language: foreign scripts, codes, tables and lists of tags are
improbable, stop words repeated are probable. Words are scored apart, and remembered: a document costs a look-up a word.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from auth.errors import ConfigError

UNKNOWN_PENALTY = 10.0  # in nats, below the rarest piece, as sentencepiece has it
REMEMBERED_CHARACTERS = 16_000_000  # of words; then all are forgotten


class UnigramScorer:
    """Perplexity per piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        if model.get("type") != "Unigram":
            raise ConfigError(
                f"A tokenizer of kind {model.get('type')} has no probabilities to score documents by: "
                "take a Unigram tokenizer, or a KenLM model."
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._surprise = _surprises(model, tokenizer.get_vocab_size())  # (vocabulary,) nats
        self._forget()

    def perplexities(self, documents: Sequence[str]) -> NDArray[np.float64]:
        words = [document.split() for document in documents]
        if self._characters > REMEMBERED_CHARACTERS:
            self._forget()
        self._learn(list(set().union(*words).difference(self._numbers)))
        counts = np.fromiter(map(len, words), np.int64, len(words))
        numbers = np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(words)), np.int64, counts.sum())
        surprise, pieces = (_sums(table[numbers], counts) for table in (self._word_surprise, self._word_pieces))
        mean = np.full(len(words), np.inf)
        np.divide(surprise, pieces, out=mean, where=pieces > 0)
        perplexities: NDArray[np.float64] = np.exp(mean)
        return perplexities

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}  # of the words that have come before, by which they stand in the tables
        self._characters = 0
        self._word_surprise, self._word_pieces = np.zeros(0), np.zeros(0)

    def _learn(self, words: list[str]) -> None:
        if not words:
            return
        found = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]
        pieces = np.fromiter(map(len, found), np.int64, len(found))
        ids = np.fromiter(chain.from_iterable(found), np.int64, pieces.sum())
        surprise = _sums(self._surprise[ids], pieces)
        first = len(self._numbers)
        self._numbers.update(zip(words, range(first, first + len(words)), strict=True))
        self._characters += sum(map(len, words))
        self._word_surprise = np.concatenate((self._word_surprise, surprise))
        self._word_pieces = np.concatenate((self._word_pieces, pieces))


def _surprises(model: dict[str, object], size: int) -> NDArray[np.float64]:
    vocabulary = model["vocab"]
    assert isinstance(vocabulary, list)
    surprise = -np.array([score for _, score in vocabulary], np.float64)
    unknown = surprise.max() + UNKNOWN_PENALTY
    special = [number for number, (piece, score) in enumerate(vocabulary) if score == 0 or piece == ""]
    surprise[special] = unknown  # `[UNK]`, and names that no text has
    unknown_id = model.get("unk_id")
    if isinstance(unknown_id, int):
        surprise[unknown_id] = unknown
    return np.concatenate((surprise, np.full(max(0, size - len(surprise)), unknown)))


def _sums(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each stretch of `counts` values, whatever its neighbours: every peer must find the same."""
    sums = np.zeros(len(counts))
    filled = counts > 0
    if filled.any():
        sums[filled] = np.add.reduceat(values, (counts.cumsum() - counts)[filled])
    return sums
