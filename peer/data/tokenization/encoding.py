"""Encoding of documents as chunks of token ids; every text goes through the tokenizer at most once.

Tokenizing is nearly all the work of the data path, and nearly all words of a text have come before. Where a tokenizer
treats words apart from each other, only new words go to it, many in one call so that it uses all cores, and the ids of
the others are remembered. A tokenizer that does not is given whole sentences. Packing works on the ids alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from peer.data.tokenization.inspection import warn_of_cut_words
from peer.data.tokenization.sentences import split_sentences
from peer.data.tokenization.words import Ints, Tokens, WordMemory, encode_texts, find_cut, sums

TRIED_SENTENCES = 500  # the first ones, on which it is seen how words can be cut


@dataclass(frozen=True)
class EncodedChunk:
    """Some documents as one run of tokens, and where sentences and documents end in it."""

    tokens: NDArray[np.int32]  # (tokens,)
    sentence_ends: NDArray[np.int64]  # (sentences,) rising; an end is the index after the last token
    document_ends: NDArray[np.int64]  # (documents,) rising; each is a sentence's end as well
    document_tokens: NDArray[np.int64] | None = None  # (documents given,) also of those without tokens


class Encoder:
    """Tokenizes documents sentence by sentence; the ids are those that the tokenizer gives for each whole sentence."""

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self._tokenizer, self._language = tokenizer, language
        self._encode: _Encode | None = None  # unknown before there is text to try

    def encode(self, documents: Sequence[str]) -> EncodedChunk:
        """The documents as one chunk; what has no tokens leaves no trace."""
        by_document = [split_sentences(document, self._language) for document in documents]
        if self._encode is None and any(by_document):
            tried = list(chain.from_iterable(by_document))[:TRIED_SENTENCES]
            self._encode = _choose(self._tokenizer, tried)
            warn_of_cut_words(self._tokenizer, tried)
        tokens, lengths = (self._encode or partial(_whole_sentences, self._tokenizer))(by_document)
        all_ends = np.cumsum(lengths)
        sentences_so_far = [count for count in accumulate(map(len, by_document)) if count]
        last_sentences = np.array(sentences_so_far, np.int64) - 1
        so_far = np.concatenate([[0], all_ends])[[0, *accumulate(map(len, by_document))]]
        return EncodedChunk(tokens, _rising(all_ends), _rising(all_ends[last_sentences]), np.diff(so_far))


# From each document's sentences to all tokens (tokens,) and how many each sentence has (sentences,).
_Encode = Callable[[list[list[str]]], tuple[Tokens, Ints]]


def _choose(tokenizer: Tokenizer, sentences: list[str]) -> _Encode:
    cut = find_cut(tokenizer, sentences)
    return partial(_whole_sentences, tokenizer) if cut is None else partial(_word_by_word, WordMemory(tokenizer, cut))


def _whole_sentences(tokenizer: Tokenizer, by_document: list[list[str]]) -> tuple[Tokens, Ints]:
    return encode_texts(tokenizer, list(chain.from_iterable(by_document)))


def _word_by_word(memory: WordMemory, by_document: list[list[str]]) -> tuple[Tokens, Ints]:
    words = list(chain.from_iterable(map(memory.cut.words, by_document)))  # of each sentence
    tokens, lengths = memory.encode(list(chain.from_iterable(words)))
    return tokens, sums(lengths, words)


def _rising(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Without the ends of what was empty."""
    return ends[np.diff(ends, prepend=0) > 0]
