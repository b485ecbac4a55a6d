"""Scorers, which compute the perplexity of documents under a language model.

A Unigram scorer needs only the run's tokenizer, whose pieces have probabilities. It is weaker than
a model of word order, but it recognizes the language: foreign scripts, codes, tables and lists of
tags are improbable; repeated stop words are probable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from auth.errors import ConfigError
from auth.files import sha256_of
from peer.config.data import ScorerConfig, Source, is_remote
from peer.data.tokenization.words import WordMemory, sums
from peer.network.remote_files import storage_options

SLICE_CHARACTERS = 1_000_000  # characters of documents scored together
UNKNOWN_PENALTY = 10.0  # in nats, added to the rarest piece's score, as in sentencepiece


class Scorer(Protocol):
    """A model that computes the perplexities of documents."""

    def perplexities(self, documents: Sequence[str]) -> NDArray[np.float64]:
        """Return perplexities (documents,) of at least 1; infinite if there is nothing to score."""
        ...


def open_scorer(config: ScorerConfig, tokenizer_dir: Path | None) -> Scorer:
    """Open the scorer that `config` describes. Raises `ConfigError` if it is unusable.

    `tokenizer_dir` holds the run's tokenizer, which is the scorer if no model is named.
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
    """Return the model's file, or download a copy for the lifetime of this process.

    Raises `ConfigError` if the download fails or the digest differs from the run file's.
    """
    path = Path(address)
    if is_remote(address):
        import fsspec

        try:
            options = {address.partition("://")[0]: storage_options(Source(kind="text", path=(address,)))}
            path = Path(fsspec.open_local(f"simplecache::{address}", **options))
        except Exception as error:  # file systems raise errors of arbitrary types
            raise ConfigError(f"Cannot fetch the scorer's model {address} ({error}): check its `model`.") from error
    if config.sha256 is not None and not (path.is_file() and sha256_of(path).hex() == config.sha256):
        raise ConfigError(f"The scorer's model {address} is not the one that the run names: its SHA-256 differs.")
    return path


class UnigramScorer:
    """A scorer by the perplexity per piece of a Unigram tokenizer.

    Words are tokenized separately and cached, so a document costs one look-up per word. A block is
    scored in slices, because words and pieces take many times the memory of the text.
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
        self._memory = WordMemory(tokenizer)
        self._surprise = _surprises(model, tokenizer.get_vocab_size())  # (vocabulary,) -log(probability), in nats

    def perplexities(self, documents: Sequence[str]) -> NDArray[np.float64]:
        ends = accumulate(map(len, documents))
        slices = groupby(zip(documents, ends, strict=True), lambda pair: pair[1] // SLICE_CHARACTERS)
        found = [self._perplexities([document for document, _ in part]) for _, part in slices]
        return np.concatenate([np.empty(0), *found])

    def _perplexities(self, documents: Sequence[str]) -> NDArray[np.float64]:
        words = [document.split() for document in documents]
        ids, lengths = self._memory.encode(list(chain.from_iterable(words)))
        pieces = sums(lengths, words)  # (documents,)
        # Documents are summed separately, so that all peers get equal sums.
        filled, mean = pieces > 0, np.full(len(words), np.inf)
        mean[filled] = np.add.reduceat(self._surprise[ids], (pieces.cumsum() - pieces)[filled]) / pieces[filled]
        perplexities: NDArray[np.float64] = np.exp(mean)
        return perplexities


def _surprises(model: dict[str, object], size: int) -> NDArray[np.float64]:
    vocabulary = model["vocab"]
    assert isinstance(vocabulary, list)
    surprise = -np.array([score for _, score in vocabulary], np.float64)
    unknown = surprise.max() + UNKNOWN_PENALTY
    special = [number for number, (piece, score) in enumerate(vocabulary) if score == 0 or piece == ""]
    surprise[special] = unknown  # `[UNK]` and special tokens that occur in no text
    unknown_id = model.get("unk_id")
    if isinstance(unknown_id, int):
        surprise[unknown_id] = unknown
    return np.concatenate((surprise, np.full(max(0, size - len(surprise)), unknown)))
