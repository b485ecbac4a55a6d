"""Words and their tokens, remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Encoding, Tokenizer

from peer.data.word_memory import WordMemory
from peer.data.words import Cut
from tests.support.small_tokenizers import word_tokenizer

AT_SPACES = Cut(takes_space=False, any_gap=True)


class Counting:
    """A tokenizer that notes how many words it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.words = 0

    def encode_batch(self, texts: Sequence[str], **options: Any) -> list[Encoding]:
        """The tokenizer's own, counted."""
        self.words += sum(len(text.split()) for text in texts)
        return self._tokenizer.encode_batch(texts, **options)


def test_a_word_is_tokenized_once() -> None:
    """A text of known words costs the tokenizer nothing."""
    counting = Counting(word_tokenizer())
    memory = WordMemory(counting, AT_SPACES)  # type: ignore[arg-type]
    tokens, lengths = memory.encode(["the", "cat", "the", "cat", "sat"])
    assert counting.words == 3
    again, _ = memory.encode(["the", "cat", "the", "cat", "sat"])
    assert counting.words == 3
    assert again.tolist() == tokens.tolist()
    assert lengths.sum() == len(tokens)


def test_the_memory_stays_small_and_keeps_what_came_first() -> None:
    """Past its limit it forgets the newer half of its words, and still knows the older ones' tokens."""
    counting = Counting(word_tokenizer())
    memory = WordMemory(counting, AT_SPACES, max_words=4)  # type: ignore[arg-type]
    first, _ = memory.encode(["the", "cat"])
    memory.encode(["sat", "on", "mat"])
    counting.words = 0
    again, _ = memory.encode(["the", "cat"])
    assert counting.words == 0
    assert again.tolist() == first.tolist()
    memory.encode(["sat"])
    assert counting.words == 1
