"""Sentences of words as pieces of tokens, no longer than the model takes, without losing a word.

A word's first token carries its tag. A sentence that is too long becomes several windows, cut between words; so every
word of a test set is judged, whatever the tokenizer makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tokenize = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Window:
    """Some words of a sentence."""

    sentence: int
    words: tuple[int, ...]  # their numbers within the sentence
    firsts: tuple[int, ...]  # where each word's first token is within `tokens`
    tokens: tuple[int, ...]  # without special ones


def cut(sentences: Sequence[Sequence[str]], tokenize: Tokenize, room: int) -> list[Window]:
    """All windows of at most `room` tokens; words that have no token are in none, longer words are cut off."""
    memory: dict[str, tuple[int, ...]] = {}
    windows = []
    for number, words in enumerate(sentences):
        held: list[tuple[int, tuple[int, ...]]] = []
        length = 0
        for place, word in enumerate(words):
            pieces = memory.get(word)
            if pieces is None:
                pieces = memory[word] = tuple(tokenize(word))[:room]
            if not pieces:
                continue
            if length + len(pieces) > room:
                windows.append(_window(number, held))
                held, length = [], 0
            held.append((place, pieces))
            length += len(pieces)
        if held:
            windows.append(_window(number, held))
    return windows


def _window(sentence: int, held: Sequence[tuple[int, tuple[int, ...]]]) -> Window:
    tokens: list[int] = []
    firsts = []
    for _, pieces in held:
        firsts.append(len(tokens))
        tokens += pieces
    return Window(sentence, tuple(place for place, _ in held), tuple(firsts), tuple(tokens))
