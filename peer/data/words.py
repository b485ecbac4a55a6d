"""How to cut sentences into words that a tokenizer can be given apart, and whether that can be done at all.

Nearly every tokenizer treats the words of a text apart from each other. Most begin by splitting at white space and
forget how much of it there was; those of bytes (RoBERTa, GPT-2) take white space to belong to the word behind it. Which
it is, is tried on text. The encoder uses this to remember words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

WORDS_PER_LINE = 32  # words go to the tokenizer in lines: a text of its own costs each word as much again
GAPS = ("  ", "\n", "\t", "\r")  # what may stand between two words beside a space
GAPPED_SENTENCES = 20  # are tried with each of these
FEW_WORDS = 3  # a sentence: such a script has no spaces, and hardly any of its "words" comes twice
WORD_WITH_SPACE = re.compile(r"\s*\S+")
# Printable symbols that normalizers turn into a space: with one of them, words are not what they seem.
METASPACE, REPLACEMENT = "\u2581", "\ufffd"

Tokens = NDArray[np.int32]
Ints = NDArray[np.int64]


class Place(Enum):
    """Where a word may stand among others that go to the tokenizer in one line."""

    ANYWHERE = 1
    FIRST = 2
    ALONE = 3


@dataclass(frozen=True)
class Cut:
    """A way to cut sentences into words; a sentence that cannot be cut so counts as one word."""

    takes_space: bool  # whether a word has the white space before it
    any_gap: bool  # whether words may be any white space apart, or one space only

    def words(self, sentences: list[str]) -> list[list[str]]:
        """Each sentence's words; cheapest for sentences that mostly look alike, such as those of one document."""
        split = WORD_WITH_SPACE.findall if self.takes_space else str.split
        if self._is_plain("".join(sentences)):
            return [split(sentence) for sentence in sentences]
        return [split(sentence) if self._is_plain(sentence) else [sentence] for sentence in sentences]

    def encode(self, tokenizer: Tokenizer, words: list[str]) -> tuple[Tokens, Ints]:
        """All words' tokens (tokens,) and how many each has (words,), many words in one text.

        Where a token ends in its text says whose it is: within a word, or on the space before it.
        """
        gap = "" if self.takes_space else " "
        lines = self._lines(words)
        encodings = tokenizer.encode_batch([gap.join(words[line]) for line in lines], add_special_tokens=False)
        tokens, tokens_per_line = _flatten(encodings)
        # As if all words stood in one text, with a gap after each.
        word_ends = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)) + len(gap))
        word_starts = np.concatenate([[0], word_ends[:-1]])
        line_starts = word_starts[[line.start for line in lines]]
        offsets = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        token_ends = np.fromiter(offsets, np.int64, 2 * len(tokens))[1::2]
        token_ends = np.maximum(token_ends, 1) + np.repeat(line_starts, tokens_per_line)  # a token may stand on nothing
        owners = np.searchsorted(word_starts, token_ends, "right" if gap else "left") - 1
        return tokens, np.bincount(owners, minlength=len(words))

    def _is_plain(self, text: str) -> bool:
        """Whether a tokenizer sees no space in the text but those at which it is cut."""
        if self.any_gap:
            text = text.replace("\n", " ").replace("\r", " ").replace("\t", " ")
        elif "  " in text:
            return False
        return text.isprintable() and METASPACE not in text and REPLACEMENT not in text

    def _lines(self, words: list[str]) -> list[slice]:
        """Which words go to the tokenizer in one text."""
        starts: list[int] = []
        before = Place.ALONE
        for index, place in enumerate(self._places(words)):
            if before is Place.ALONE or place is not Place.ANYWHERE or index - starts[-1] == WORDS_PER_LINE:
                starts.append(index)
            before = place
        return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(words)], strict=True)]

    def _places(self, words: list[str]) -> Iterator[Place]:
        all_plain = self._is_plain("\n".join(words) if self.any_gap else "".join(words))
        for word in words:
            if not (all_plain or self._is_plain(word)):
                yield Place.ALONE
            elif self.takes_space and not word[0].isspace():
                yield Place.FIRST
            else:
                yield Place.ANYWHERE


CUTS = tuple(Cut(takes_space, any_gap) for any_gap in (True, False) for takes_space in (False, True))


def find_cut(tokenizer: Tokenizer, sentences: list[str]) -> Cut | None:
    """The first cut by which each of these sentences has its words' tokens, one after the other, if it is any use."""
    if sum(len(sentence.split()) for sentence in sentences) < FEW_WORDS * len(sentences):
        return None
    sentences = [*sentences, *(gap.join(sentence.split()) for gap in GAPS for sentence in sentences[:GAPPED_SENTENCES])]
    whole = encode_texts(tokenizer, sentences)
    return next((cut for cut in CUTS if _fits(cut, tokenizer, sentences, whole)), None)


def _fits(cut: Cut, tokenizer: Tokenizer, sentences: list[str], whole: tuple[Tokens, Ints]) -> bool:
    """Whether words have the same tokens among strangers, which stand beside them in the alphabet, as in sentences."""
    by_sentence = cut.words(sentences)
    words = list(chain.from_iterable(by_sentence))
    alphabet = sorted(set(words))
    places = {word: place for place, word in enumerate(alphabet)}
    tokens, lengths = cut.encode(tokenizer, alphabet)
    of_words = np.split(tokens, np.cumsum(lengths)[:-1])
    in_sentences = np.concatenate([of_words[places[word]] for word in words])
    lengths_in_sentences = sums(lengths[[places[word] for word in words]], by_sentence)
    return np.array_equal(in_sentences, whole[0]) and np.array_equal(lengths_in_sentences, whole[1])


def sums(values: Ints, groups: Sequence[Sequence[object]]) -> Ints:
    """The sum of each group's values: as many as the group has items, one group after the other."""
    so_far = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(np.fromiter(map(len, groups), np.int64, len(groups)))
    return np.diff(so_far[ends], prepend=0)


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> tuple[Tokens, Ints]:
    """All texts' tokens (tokens,) and how many each has (texts,)."""
    return _flatten(tokenizer.encode_batch_fast(texts, add_special_tokens=False))


def _flatten(encodings: list[Encoding]) -> tuple[Tokens, Ints]:
    ids = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths
