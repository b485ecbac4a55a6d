"""Filters that decide which documents of a source a device reads, on whole blocks, before they are shuffled.

Every peer must decide alike, so a filter looks at nothing but the documents and the run's configuration; only
duplicates depend on what a device has read. `peer.data.sources.reader` applies what `build_filters` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peer.config.data import Sampling, Source
from peer.data.selection.duplicates import open_duplicates
from peer.data.selection.perplexity import decide, probabilities
from peer.data.selection.scoring import Scorer, open_scorer

Mask = NDArray[np.bool_]


class DocumentFilter(Protocol):
    """Tells which documents to keep."""

    def keep(self, documents: Sequence[str]) -> Mask:
        """True for each of the (documents,) that stays."""
        ...


OpenFilters = Callable[[], Sequence[DocumentFilter]]


@dataclass(frozen=True)
class LengthFilter:
    """Drops what is too short to learn from, or too long."""

    min_characters: int
    max_characters: int | None

    def keep(self, documents: Sequence[str]) -> Mask:
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        kept = lengths >= self.min_characters
        return kept if self.max_characters is None else kept & (lengths <= self.max_characters)


class SamplingFilter:
    """Keeps documents as a source's `sampling` says, by their text alone: as `manyhands corpus sample` would."""

    def __init__(self, sampling: Sampling, scorer: Scorer | None) -> None:
        self._sampling, self._scorer = sampling, scorer

    def keep(self, documents: Sequence[str]) -> Mask:
        if self._scorer is None:  # chance needs no score
            return decide(documents, np.full(len(documents), min(1.0, self._sampling.scale)))
        return decide(documents, probabilities(self._sampling, self._scorer.perplexities(documents)))


def build_filters(source: Source, first: Sequence[DocumentFilter], tokenizer_dir: Path | None) -> OpenFilters:
    """Build the filters for a source's documents, the `first` ones before all others, cheap tests before costly ones.

    Filters are opened anew for each epoch: duplicates are those that a device has read since then, or since it was
    started. Raises `ConfigError` if the scorer of documents cannot be had; `tokenizer_dir` holds the run's tokenizer.
    """
    before, limits = list(first), source.filters
    if limits.min_characters > 0 or limits.max_characters is not None:
        before.append(LengthFilter(limits.min_characters, limits.max_characters))
    sampling = open_sampling(source, tokenizer_dir)
    after = [] if sampling is None else [sampling]

    def open_filters() -> Sequence[DocumentFilter]:
        duplicates = open_duplicates(source.duplicates)
        return [*before, *([] if duplicates is None else [duplicates]), *after]

    return open_filters


def open_sampling(source: Source, tokenizer_dir: Path | None) -> SamplingFilter | None:
    """Open the source's sampling, if it has one. Raises `ConfigError` if its scorer cannot be had."""
    sampling = source.sampling
    if sampling is None:
        return None
    return SamplingFilter(
        sampling, None if sampling.method == "random" else open_scorer(sampling.scorer, tokenizer_dir)
    )


def keep_all(filters: Sequence[DocumentFilter], documents: Sequence[str]) -> Mask:
    """True for each of the (documents,) that passes all filters; each sees only what passed those before it."""
    kept = np.arange(len(documents))
    for test in filters:
        if len(kept):
            kept = kept[test.keep([documents[index] for index in kept.tolist()])]
    mask = np.zeros(len(documents), np.bool_)
    mask[kept] = True
    return mask
