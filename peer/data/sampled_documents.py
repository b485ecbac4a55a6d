"""Sampling and dropping duplicates on the fly, as a source is streamed: nobody has to store the corpus, or its sample.

Sampling is decided by a document's text alone: every peer keeps the same documents as `manyhands corpus sample` would.
Duplicates are those that this device has read since its source's last beginning, or since it was opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from peer.config.data import Source
from peer.config.sampling import Duplicates, Sampling
from peer.data.duplicates import open_duplicates
from peer.data.perplexity_sampling import decide, probabilities
from peer.data.scoring import Scorer, open_scorer


class SamplingFilter:
    """Keeps documents as a run file's `sampling` says."""

    def __init__(self, sampling: Sampling, scorer: Scorer | None) -> None:
        self._sampling, self._scorer = sampling, scorer

    def keep(self, documents: Sequence[str]) -> NDArray[np.bool_]:
        """True for each of the (documents,) that stays."""
        if self._scorer is None:  # chance needs no score
            return decide(documents, np.full(len(documents), min(1.0, self._sampling.scale)))
        return decide(documents, probabilities(self._sampling, self._scorer.perplexities(documents)))


class DocumentStream(Protocol):
    """As `peer.data.documents` has it."""

    def __next__(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def position(self) -> Mapping[str, Any]: ...


class SampledDocuments:
    """A stream in which what is not kept is the empty string."""

    def __init__(self, stream: DocumentStream, sampling: SamplingFilter | None, duplicates: Duplicates) -> None:
        self._stream, self._sampling, self._kind = stream, sampling, duplicates
        self._duplicates, self._remembered_epoch = open_duplicates(duplicates), stream.epoch

    def __next__(self) -> str:
        document = next(self._stream)
        if self._stream.epoch != self._remembered_epoch:  # everything comes again, and is no duplicate of itself
            self._duplicates, self._remembered_epoch = open_duplicates(self._kind), self._stream.epoch
        filters = [test for test in (self._duplicates, self._sampling) if test is not None]
        return document if document and all(test.keep([document])[0] for test in filters) else ""

    @property
    def epoch(self) -> int:
        return self._stream.epoch

    def position(self) -> Mapping[str, Any]:
        return self._stream.position()


def open_sampling(source: Source, tokenizer_dir: Path | None) -> SamplingFilter | None:
    """The source's filter, if it has one; raises `ConfigError` where its scorer cannot be had."""
    sampling = source.sampling
    if sampling is None:
        return None
    return SamplingFilter(
        sampling, None if sampling.method == "random" else open_scorer(sampling.scorer, tokenizer_dir)
    )
