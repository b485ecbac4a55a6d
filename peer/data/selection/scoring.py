"""Scorers, which say how probable a language model finds documents; `open_scorer` opens the one that is named.

A Unigram scorer needs no model but the run's tokenizer, whose pieces have probabilities. It is weaker than a model of
word order, yet it knows the language: foreign scripts, codes, tables and lists of tags are improbable, stop words
repeated are probable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from auth.errors import ConfigError
from auth.files import sha256_of
from peer.config.data import ScorerConfig, Source, is_remote
from peer.network.remote_files import storage_options

UNKNOWN_PENALTY = 10.0  # in nats, below the rarest piece, as sentencepiece has it
REMEMBERED_CHARACTERS = 16_000_000  # of words; then all are forgotten


class Scorer(Protocol):
    """Gives documents their perplexities."""

    def perplexities(self, documents: Sequence[str]) -> NDArray[np.float64]:
        """(documents,), each 1 or more; infinite where there is nothing to score."""
        ...


def open_scorer(config: ScorerConfig, tokenizer_dir: Path | None) -> Scorer:
    """The scorer that `config` describes; raises `ConfigError`.

    `tokenizer_dir` holds the run's tokenizer, which scores where no model is named.
    """
    if config.kind == "kenlm":
        from peer.data.selection.kenlm import KenlmScorer

        assert config.model is not None
        return KenlmScorer(_checked_copy(config, config.model), config.text)
    from peer.data.tokenization.tokenizers import read_tokenizer

    path = tokenizer_dir if config.model is None else _checked_copy(config, config.model)
    if path is None:
        raise ConfigError("Sampling needs a scorer: the run's tokenizer, or a `model` for `sampling.scorer`.")
    return UnigramScorer(read_tokenizer(path))


def _checked_copy(config: ScorerConfig, address: str) -> Path:
    """The model's file, of which the digest is right if the run file gives one; raises `ConfigError`."""
    path = local_copy(address)
    if config.sha256 is not None and not (path.is_file() and sha256_of(path).hex() == config.sha256):
        raise ConfigError(f"The scorer's model {address} is not the one that the run names: its SHA-256 differs.")
    return path


def local_copy(address: str) -> Path:
    """The file at a path, or a copy of what is at an address, which lasts as long as this process."""
    if not is_remote(address):
        return Path(address)
    import fsspec

    try:
        options = {address.partition("://")[0]: storage_options(Source(kind="text", path=(address,)))}
        return Path(fsspec.open_local(f"simplecache::{address}", **options))
    except Exception as error:  # of any file system
        raise ConfigError(f"Cannot fetch the scorer's model {address} ({error}): check its `model`.") from error


class UnigramScorer:
    """Perplexity per piece of a Unigram tokenizer.

    Words are scored apart, and remembered: a document costs a look-up a word.
    """

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
    """Sum each stretch of `counts` values, independently of its neighbours: every peer must find the same sums."""
    sums = np.zeros(len(counts))
    filled = counts > 0
    if filled.any():
        sums[filled] = np.add.reduceat(values, (counts.cumsum() - counts)[filled])
    return sums
