"""Which documents are held out for validation: decided by a document's own hash, so alike on every peer and for ever.

It does not matter who reads a document, when, or from which source: a copy of a held-out document is held out too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from peer.data.hashing import uniform

SALT = "validation"
Part = Literal["training", "validation"]


class PartFilter:
    """Keeps the documents of one part: those held out, which are `share` of all, or all others."""

    def __init__(self, part: Part, share: float) -> None:
        self._wanted, self._share = part == "validation", share

    def keep(self, documents: Sequence[str]) -> NDArray[np.bool_]:
        """Which of the documents belong to the part."""
        return np.fromiter((self.keeps(document) for document in documents), np.bool_, len(documents))

    def keeps(self, document: str) -> bool:
        """Whether this one does."""
        return (uniform(document, SALT) < self._share) == self._wanted


class _Documents(Protocol):
    """What is needed of `peer.data.documents.DocumentStream`."""

    def __next__(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def position(self) -> Mapping[str, Any]: ...


class PartOfDocuments:
    """One part of a stream; in place of each document of the other part comes the empty string."""

    def __init__(self, documents: _Documents, part: Part, share: float) -> None:
        self._documents, self._filter = documents, PartFilter(part, share)

    def __next__(self) -> str:
        document = next(self._documents)
        return document if self._filter.keeps(document) else ""

    @property
    def epoch(self) -> int:
        """How often everything was read."""
        return self._documents.epoch

    def position(self) -> Mapping[str, Any]:
        """Where the next document stands."""
        return self._documents.position()
