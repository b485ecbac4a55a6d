"""A document's hash, and a pseudo-random number in [0, 1) derived from it, equal on all peers.

Documents are held out for validation according to this number. It does not depend on the reader,
the time or the source, so a copy of a held-out document is always held out, on every peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import numpy as np

from peer.data.selection.masks import Mask

BITS = 64
SALT = "validation"
Part = Literal["training", "validation"]


def document_hash(text: str, salt: str = "") -> int:
    """Return the 64-bit BLAKE2b hash of the stripped text; salts give independent hashes."""
    digest = blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=BITS // 8, person=salt.encode()[:16])
    return int.from_bytes(digest.digest(), "big")


def uniform(text: str, salt: str) -> float:
    """Return a document's pseudo-random number in [0, 1), which depends only on text and salt."""
    return document_hash(text, salt) / (1 << BITS)


class PartFilter:
    """A filter that keeps one part: the held-out documents (`share` of all), or all others."""

    def __init__(self, part: Part, share: float) -> None:
        self._wanted, self._share = part == "validation", share

    def keep(self, documents: Sequence[str]) -> Mask:
        """Return a mask of the documents that belong to the part."""
        return np.fromiter((self.keeps(document) for document in documents), np.bool_, len(documents))

    def keeps(self, document: str) -> bool:
        """Return whether this document belongs to the part."""
        return (uniform(document, SALT) < self._share) == self._wanted
