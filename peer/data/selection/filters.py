"""Filters that select a source's documents, block by block, before they are shuffled.

All peers must make the same decisions, so filters depend only on documents and configuration; the
duplicate filter also depends on the documents read. `peer.data.sources.reader` applies filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from peer.config.data import Filters, Source
from peer.data.selection.duplicates import open_duplicates
from peer.data.selection.masks import DocumentFilter, Mask
from peer.data.selection.perplexity import decide, probabilities
from peer.data.selection.scoring import open_scorer

OpenFilters = Callable[[], Sequence[DocumentFilter]]


def build_filters(source: Source, first: Sequence[DocumentFilter], tokenizer_dir: Path | None) -> OpenFilters:
    """Build a source's filters: `first`, then the others, cheap filters before costly ones.

    Filters are reopened for each epoch, so duplicates are detected among the documents read since
    the epoch or the process began. `tokenizer_dir` holds the run's tokenizer. Raises `ConfigError`
    if the scorer is unavailable.
    """
    before, limits = list(first), source.filters
    if limits.min_characters > 0 or limits.max_characters is not None:
        before.append(partial(have_wanted_length, limits))
    sampling = open_sampling(source, tokenizer_dir)
    return lambda: [test for test in (*before, open_duplicates(source.duplicates), sampling) if test is not None]


def have_wanted_length(limits: Filters, documents: Sequence[str]) -> Mask:
    """Return a mask of the documents that are neither too short to learn from nor too long."""
    lengths = np.fromiter(map(len, documents), np.int64, len(documents))
    kept = lengths >= limits.min_characters
    return kept if limits.max_characters is None else kept & (lengths <= limits.max_characters)


def open_sampling(source: Source, tokenizer_dir: Path | None) -> DocumentFilter | None:
    """Return the filter that samples the source's documents, or None if the source is not sampled.

    The filter decides from a document's text alone whether to keep it, like
    `manyhands corpus sample`. Raises `ConfigError` if the filter's scorer is unavailable.
    """
    sampling = source.sampling
    if sampling is None:
        return None
    if sampling.method == "random":  # random sampling needs no scorer
        return lambda documents: decide(documents, np.full(len(documents), min(1.0, sampling.scale)))
    scorer = open_scorer(sampling.scorer, tokenizer_dir)
    return lambda documents: decide(documents, probabilities(sampling, scorer.perplexities(documents)))


def keep_all(filters: Sequence[DocumentFilter], documents: Sequence[str]) -> Mask:
    """Return a mask of the documents that pass all filters, which are applied one after another."""
    kept = np.arange(len(documents))
    for test in filters:
        if len(kept):
            kept = kept[test([documents[index] for index in kept.tolist()])]
    mask = np.zeros(len(documents), np.bool_)
    mask[kept] = True
    return mask
