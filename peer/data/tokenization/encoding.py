"""Encoding of documents as chunks of token ids, with each text tokenized at most once.

Tokenization dominates the cost of the data pipeline, and most words are repetitions. If a
tokenizer treats words independently, only new words are tokenized, many per call to use all cores,
and their ids are cached. Other tokenizers get whole sentences. Packing works on ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from peer.data.tokenization.inspection import warn_of_cut_words
from peer.data.tokenization.sentences import split_sentences
from peer.data.tokenization.words import Cut, Ints, Tokens, WordMemory, encode_texts, find_cut, sums

TRIED_SENTENCES = 500  # number of sentences used to choose a rule for cutting words


@dataclass(frozen=True)
class EncodedChunk:
    """Documents as one sequence of tokens, with the ends of all sentences and documents."""

    tokens: NDArray[np.int32]  # (tokens,)
    sentence_ends: NDArray[np.int64]  # (sentences,) ascending; index after the last token
    document_ends: NDArray[np.int64]  # (documents,) ascending; each is also a sentence end
    document_tokens: NDArray[np.int64] | None = None  # (documents,) including documents without tokens


class Encoder:
    """An encoder of documents that returns the same ids as tokenizing each sentence as a whole."""

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self._tokenizer, self._language, self._memory = tokenizer, language, WordMemory(tokenizer)
        self._cut: Cut | None = None
        self._has_tried = False  # whether `find_cut` has run, which requires text

    def encode(self, documents: Sequence[str]) -> EncodedChunk:
        """Encode documents as one chunk; sentences and documents without tokens are omitted."""
        by_document = [split_sentences(document, self._language) for document in documents]
        if not self._has_tried and any(by_document):
            tried = list(chain.from_iterable(by_document))[:TRIED_SENTENCES]
            self._cut, self._has_tried = find_cut(self._tokenizer, tried), True
            warn_of_cut_words(self._tokenizer, tried)
        tokens, lengths = self._tokenize(by_document)
        document_tokens = sums(lengths, by_document)
        return EncodedChunk(tokens, _rising(np.cumsum(lengths)), _rising(np.cumsum(document_tokens)), document_tokens)

    def _tokenize(self, by_document: list[list[str]]) -> tuple[Tokens, Ints]:
        """Return all tokens (tokens,) and the number of tokens of each sentence (sentences,)."""
        if self._cut is None:
            return encode_texts(self._tokenizer, list(chain.from_iterable(by_document)))
        words = list(chain.from_iterable(map(self._cut.words, by_document)))  # the words of each sentence
        tokens, lengths = self._memory.encode(list(chain.from_iterable(words)))
        return tokens, sums(lengths, words)


def _rising(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Drop the repeated ends of empty sentences or documents."""
    return ends[np.diff(ends, prepend=0) > 0]
