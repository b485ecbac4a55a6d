"""Training of the run's tokenizer on a stream of documents that is read once.

The libraries' trainers store each distinct word with its count, in about a kilobyte. Half of a
text's distinct words occur only once: millions in a long text, which do not improve a vocabulary.
Rare words of a long text are therefore omitted (`RareWordFilter`): a word passes from its n-th
occurrence on, where n doubles with every `free_words` words that have passed. Short texts lose no
words. In scripts without spaces, the word is a whole clause, which hardly ever recurs. Clauses are
therefore sampled: all at first, then every second one, every fourth, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any
from zlib import crc32

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.models import Model
from tokenizers.trainers import BpeTrainer, Trainer, UnigramTrainer, WordPieceTrainer

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.config.tokenizer import PRESETS, Tokenizer as TokenizerConfig
from peer.data.tokenization.pipelines import CONTINUED, build_pipeline, frame, marks_continuation, uses_bytes
from peer.data.tokenization.sentencepiece import train_sentencepiece
from peer.data.tokenization.sentences import split_sentences
from peer.data.tokenization.special_tokens import added_tokens

SLOTS = 1 << 24  # word counters in 16 MB; words may share a counter, so a rare word may pass
LET_THROUGH = 255
CLAUSE_CHARACTERS = 32  # a longer word is a clause without spaces
WORDS_PER_CHARACTER = 2  # a clause's memory in words per character, because its substrings are stored
_WORDS = re.compile(r"\s*\S+")  # a word with the white space before it
FREE_WORDS = 100_000  # minimum number of distinct words that always pass
WORDS_PER_TOKEN = 8  # distinct words that always pass, per token of the vocabulary
RARE = 2  # minimum frequency of a pair to merge


def train_tokenizer(config: RunConfig, documents: Iterable[str]) -> Tokenizer:
    """Train the tokenizer that the run file describes. Raises `ConfigError` if that fails."""
    names = PRESETS[config.tokenizer.preset].special_tokens
    rare_words = RareWordFilter(max(FREE_WORDS, WORDS_PER_TOKEN * config.tokenizer.vocab_size))
    sentences = _sentences(documents, config.run.language, rare_words)
    if config.tokenizer.chosen_algorithm == "sentencepiece":
        tokenizer = train_sentencepiece(config.tokenizer, names, sentences, config.run.seed)
    else:
        tokenizer = _train(config.tokenizer, names, sentences)
    if config.objective.masks:  # causal models read texts without a template
        tokenizer.post_processor = frame(tokenizer, names)
    return tokenizer


class RareWordFilter:
    """A filter of rare words in a stream of texts; deterministic for equal texts in equal order."""

    def __init__(self, free_words: int) -> None:
        self._free_words = free_words
        self._counts = bytearray(SLOTS)
        self.let_through = 0  # number of distinct words passed by the filter
        self.drawn = 0  # total length of the sampled clauses

    def __call__(self, text: str) -> str:
        """Return the text without its rare words, and count its words."""
        counts, kept = self._counts, []
        for word in _WORDS.findall(text):
            number = crc32(word.lstrip().encode())
            slot = number % SLOTS
            if len(word) > CLAUSE_CHARACTERS:
                is_kept = self._draw(number, len(word))
            else:
                is_kept = counts[slot] == LET_THROUGH or self._comes_often_enough(slot)
            if is_kept:
                kept.append(word)
        return "".join(kept)

    def _draw(self, number: int, characters: int) -> bool:
        """Return whether to sample a clause, depending on its hash."""
        doublings = self.drawn * WORDS_PER_CHARACTER // self._free_words
        if number % (1 << doublings):
            return False
        self.drawn += characters
        return True

    def _comes_often_enough(self, slot: int) -> bool:
        """Count a word that has not passed before; return whether it passes now."""
        doublings = min(self.let_through // self._free_words, 7)  # counts stay below 2^7, to differ from the mark
        if self._counts[slot] + 1 < 1 << doublings:
            self._counts[slot] += 1
            return False
        self._counts[slot] = LET_THROUGH
        self.let_through += 1
        return True


def _train(config: TokenizerConfig, names: Mapping[str, str], sentences: Iterator[list[str]]) -> Tokenizer:
    model, trainer = _algorithm(config, names)
    tokenizer = build_pipeline(model, config)
    try:
        tokenizer.train_from_iterator(sentences, trainer)
    except ConfigError:
        raise  # raised by a source of documents
    except Exception as error:  # the library raises nothing more specific
        raise ConfigError(f"Cannot train the tokenizer: {error}; is `tokenizer.vocab_size` large enough?") from error
    size = tokenizer.get_vocab_size()
    if size > config.vocab_size:
        raise ConfigError(
            f"The text has too many characters for `tokenizer.vocab_size` ({config.vocab_size}): {size} are needed."
        )
    return tokenizer


def _algorithm(config: TokenizerConfig, names: Mapping[str, str]) -> tuple[Model, Trainer]:
    prefix: dict[str, Any] = {"continuing_subword_prefix": CONTINUED} if marks_continuation(config) else {}
    common: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "special_tokens": added_tokens(names),
        "initial_alphabet": pre_tokenizers.ByteLevel.alphabet() if uses_bytes(config) else [],  # includes all bytes
        "show_progress": False,
    }
    if config.chosen_algorithm == "unigram":
        return models.Unigram(), UnigramTrainer(unk_token=names["unk"], **common)
    common |= {"min_frequency": RARE, **prefix}
    if config.chosen_algorithm == "wordpiece":
        return models.WordPiece(unk_token=names["unk"], **prefix), WordPieceTrainer(**common)
    unknown = {} if uses_bytes(config) else {"unk_token": names["unk"]}
    return models.BPE(fuse_unk=True, **unknown, **prefix), BpeTrainer(**common)


def _sentences(documents: Iterable[str], language: str, clean: Callable[[str], str]) -> Iterator[list[str]]:
    """Return each document's sentences. Raises `ConfigError` if there are none at all."""
    split = (split_sentences(document, language) for document in documents)
    sentences = filter(None, (list(filter(None, map(clean, texts))) for texts in split))
    first = next(sentences, None)
    if first is None:
        raise ConfigError("The run's data sources hold no text to train a tokenizer on: check `data.sources`.")
    return chain([first], sentences)
