"""Filters that decide which documents of a source a device reads, on whole blocks, before they are shuffled.

Every peer must decide alike, so a filter looks at nothing but the documents and the run's configuration; only
duplicates depend on what a device has read. `peer.data.sources.reader` applies what `build_filters` gives.
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
    """Build the filters for a source's documents, the `first` ones before all others, cheap tests before costly ones.

    Filters are opened anew for each epoch: duplicates are those that a device has read since then, or since it was
    started. Raises `ConfigError` if the scorer of documents cannot be had; `tokenizer_dir` holds the run's tokenizer.
    """
    before, limits = list(first), source.filters
    if limits.min_characters > 0 or limits.max_characters is not None:
        before.append(partial(have_wanted_length, limits))
    sampling = open_sampling(source, tokenizer_dir)
    return lambda: [test for test in (*before, open_duplicates(source.duplicates), sampling) if test is not None]


def have_wanted_length(limits: Filters, documents: Sequence[str]) -> Mask:
    """Return which documents are neither too short to learn from nor too long."""
    lengths = np.fromiter(map(len, documents), np.int64, len(documents))
    kept = lengths >= limits.min_characters
    return kept if limits.max_characters is None else kept & (lengths <= limits.max_characters)


def open_sampling(source: Source, tokenizer_dir: Path | None) -> DocumentFilter | None:
    """Open the source's sampling, if it has one, which decides by the text alone, as `manyhands corpus sample` would.

    Raises `ConfigError` if its scorer cannot be had.
    """
    sampling = source.sampling
    if sampling is None:
        return None
    if sampling.method == "random":  # chance needs no score
        return lambda documents: decide(documents, np.full(len(documents), min(1.0, sampling.scale)))
    scorer = open_scorer(sampling.scorer, tokenizer_dir)
    return lambda documents: decide(documents, probabilities(sampling, scorer.perplexities(documents)))


def keep_all(filters: Sequence[DocumentFilter], documents: Sequence[str]) -> Mask:
    """True for each of the (documents,) that passes all filters; each sees only what passed those before it."""
    kept = np.arange(len(documents))
    for test in filters:
        if len(kept):
            kept = kept[test([documents[index] for index in kept.tolist()])]
    mask = np.zeros(len(documents), np.bool_)
    mask[kept] = True
    return mask
