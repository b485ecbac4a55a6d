"""Documents to chunks of token ids; every text goes through the tokenizer at most once.

Tokenizing is nearly all the work of the data path, and nearly all words of a text have come before. Where a tokenizer
treats words apart from each other, as those do that begin by splitting at white space, only new words go to it, many in
one call so that it uses all cores, and the ids of the others are remembered. A tokenizer that does not is given whole
sentences. Packing works on the ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from peer.data.sentences import split_sentences
from peer.data.word_memory import WordMemory, encode_texts, is_plain

PROBED_SENTENCES = 500
GAPPED_SENTENCES = 20
GAPS = ("  ", "\n", "\t", "\r")  # what may stand between two words; `words_of` takes it for a space


@dataclass(frozen=True)
class EncodedChunk:
    """Some documents as one run of tokens, and where sentences and documents end in it."""

    tokens: NDArray[np.int32]  # (tokens,)
    sentence_ends: NDArray[np.int64]  # (sentences,) rising; an end is the index after the last token
    document_ends: NDArray[np.int64]  # (documents,) rising; each is a sentence's end as well


class Encoder:
    """Tokenizes documents sentence by sentence; the ids are those that the tokenizer gives for each whole sentence."""

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self._tokenizer, self._language = tokenizer, language
        self._memory = WordMemory(tokenizer)
        self._words_are_independent: bool | None = None  # unknown before there is text to try

    def encode(self, documents: Sequence[str]) -> EncodedChunk:
        """The documents as one chunk; what has no tokens leaves no trace."""
        by_document = [split_sentences(document, self._language) for document in documents]
        sentences = list(chain.from_iterable(by_document))
        tokens, lengths = self._encode_sentences(sentences)
        all_ends = np.cumsum(lengths)
        sentences_so_far = [count for count in accumulate(map(len, by_document)) if count]
        last_sentences = np.array(sentences_so_far, np.int64) - 1
        return EncodedChunk(tokens, _rising(all_ends), _rising(all_ends[last_sentences]))

    def _encode_sentences(self, sentences: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """All sentences' tokens (tokens,) and how many each has (sentences,)."""
        if self._words_are_independent is None and sentences:
            self._words_are_independent = words_are_independent(self._tokenizer, sentences[:PROBED_SENTENCES])
        if not self._words_are_independent:
            return encode_texts(self._tokenizer, sentences)
        words = [words_of(sentence) for sentence in sentences]
        tokens, word_lengths = self._memory.encode(list(chain.from_iterable(words)))
        token_ends = np.concatenate([[0], np.cumsum(word_lengths)])  # before the first word, after each
        word_ends = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))
        return tokens, np.diff(token_ends[word_ends], prepend=0)


def words_of(sentence: str) -> list[str]:
    """What can be tokenized apart: a sentence's words, or all of it where it holds any but plain spaces."""
    text = sentence.replace("\n", " ").replace("\r", " ").replace("\t", " ")
    return text.split() if is_plain(text) else [sentence]


def words_are_independent(tokenizer: Tokenizer, sentences: list[str]) -> bool:
    """Whether each of these sentences has its words' tokens, one after the other, and so whatever space is between."""
    sentences = [*sentences, *(gap.join(sentence.split()) for gap in GAPS for sentence in sentences[:GAPPED_SENTENCES])]
    words = [words_of(sentence) for sentence in sentences]
    whole, lengths = encode_texts(tokenizer, sentences)
    apart, word_lengths = encode_texts(tokenizer, list(chain.from_iterable(words)))
    owners = np.repeat(np.arange(len(words)), list(map(len, words)))
    lengths_apart = np.bincount(owners, word_lengths, minlength=len(words))
    return np.array_equal(whole, apart) and np.array_equal(lengths, lengths_apart)


def _rising(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Without the ends of what was empty."""
    return ends[np.diff(ends, prepend=0) > 0]
