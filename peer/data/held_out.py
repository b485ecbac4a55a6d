"""Which documents are held out for validation: decided by a document's own hash, so alike on every peer and for ever.

It does not matter who reads a document, when, or from which source: a copy of a held-out document is held out too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

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
