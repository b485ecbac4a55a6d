"""How well a tokenizer fits a text: what it does not know, and into how many tokens it cuts characters and words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from tokenizers import Encoding, Tokenizer
from tokenizers.pre_tokenizers import Whitespace

from peer.data.sentences import split_sentences

BATCH = 256  # documents tokenized in one call
_WORDS = Whitespace()  # runs of letters, marks and digits; runs of anything else


@dataclass(frozen=True)
class Fit:
    """What was counted in a text; a word is a run of letters, marks and digits."""

    documents: int = 0
    characters: int = 0
    tokens: int = 0
    unknown: int = 0  # tokens that stand for what the vocabulary lacks
    words: int = 0
    word_tokens: int = 0  # tokens that hold a part of a word; one that holds parts of two counts twice
    split_words: int = 0  # words in more than one token

    def __add__(self, other: Fit) -> Fit:
        return Fit(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def summary(self) -> dict[str, float | None]:
        """The figures that people compare tokenizers by; None where there was no text."""
        return {
            "unknown_rate": _ratio(self.unknown, self.tokens),
            "characters_per_token": _ratio(self.characters, self.tokens),
            "tokens_per_word": _ratio(self.word_tokens, self.words),
            "split_words": _ratio(self.split_words, self.words),
        }


def measure_fit(tokenizer: Tokenizer, documents: Iterable[str], language: str, unknown_id: int | None) -> Fit:
    """Tokenize documents as training does, sentence by sentence, and count."""
    total = Fit()
    for batch in _batches(documents):
        by_document = [split_sentences(document, language) for document in batch]
        sentences = [sentence for document in by_document for sentence in document]
        encodings = tokenizer.encode_batch(sentences, add_special_tokens=False)
        total += Fit(documents=sum(map(bool, by_document)))
        total = sum((_count(*pair, unknown_id) for pair in zip(sentences, encodings, strict=True)), total)
    return total


def _count(sentence: str, encoding: Encoding, unknown_id: int | None) -> Fit:
    words = [span for piece, span in _WORDS.pre_tokenize_str(sentence) if any(map(str.isalnum, piece))]
    word_starts, word_ends = np.array(words, np.int64).reshape(-1, 2).T  # (words,) each
    starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T  # (tokens,) each; rising
    # A token holds a part of a word if it begins before the word's end and ends behind its start.
    parts = np.searchsorted(starts, word_ends, "left") - np.searchsorted(ends, word_starts, "right")
    return Fit(
        characters=len(sentence),
        tokens=len(encoding),
        unknown=0 if unknown_id is None else encoding.ids.count(unknown_id),
        words=len(words),
        word_tokens=int(parts.sum()),
        split_words=int((parts > 1).sum()),
    )


def _batches(documents: Iterable[str]) -> Iterator[Sequence[str]]:
    remaining = iter(documents)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
