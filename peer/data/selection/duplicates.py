"""Removal of duplicate documents: exact copies, or near ones by MinHash (Broder 1997; datasketch).

Memory is bounded: when it is full, older documents are forgotten, so a copy may pass but no new
document is dropped. The first of several copies is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from auth.errors import ConfigError
from peer.config.data import Duplicates
from peer.data.selection.hashing import document_hash
from peer.data.selection.masks import DocumentFilter, Mask
from peer.runtime.software import how_to_add

Hashes = NDArray[np.uint64]
SALT = "duplicates"
WAYS = 8  # hashes per row of the table: one cache line
EXACT_REMEMBERED = 1 << 24  # number of documents to remember; up to 128 MB, allocated as needed
NEAR_REMEMBERED = 200_000  # number of documents to remember; about half a gigabyte
PERMUTATIONS = 64
SIMILAR = 0.8  # Jaccard similarity above which two documents are near duplicates
SHINGLE_WORDS, SHINGLE_CHARACTERS = 5, 8
UNSPACED = 16  # characters per word above which a script is taken to have no spaces
WORD = re.compile(r"\w+")
MIX = np.uint64(0x9E3779B97F4A7C15)


def open_duplicates(kind: Duplicates) -> DocumentFilter | None:
    """Return a duplicate filter, or None for `none`. Raises `ConfigError` without datasketch."""
    if kind == "none":
        return None
    return ExactDuplicates().keep if kind == "exact" else NearDuplicates().keep


class ExactDuplicates:
    """A filter by 64-bit hashes, with hardly one false match in a hundred million documents.

    Hashes are stored in a table; in a full row, a new hash determines which entry it replaces.
    """

    def __init__(self, remembered: int = EXACT_REMEMBERED) -> None:
        self._table = np.zeros((max(1, remembered // WAYS), WAYS), np.uint64)  # 0: an empty slot

    def keep(self, documents: Sequence[str]) -> Mask:
        """Return a mask of the documents that are not copies of earlier ones."""
        hashes = np.fromiter((document_hash(text, SALT) or 1 for text in documents), np.uint64, len(documents))
        new = np.zeros(len(hashes), np.bool_)
        new[np.unique(hashes, return_index=True)[1]] = True
        places = (hashes % np.uint64(len(self._table))).astype(np.int64)
        new &= ~(self._table[places] == hashes[:, None]).any(axis=1)
        for place, number in zip(places[new].tolist(), hashes[new].tolist(), strict=True):
            self._remember(place, number)
        return new

    def _remember(self, place: int, number: int) -> None:
        row = self._table[place]
        way = int(np.argmin(row))  # an empty slot (0), if there is one
        row[way if row[way] == 0 else (number >> 32) % WAYS] = number


class NearDuplicates:
    """A filter by MinHashes of the texts' shingles, looked up with locality-sensitive hashing.

    The filter stores two generations of documents; when the younger is full, the older is dropped.
    """

    def __init__(self, remembered: int = NEAR_REMEMBERED) -> None:
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise ConfigError(
                f"Near duplicates need the package datasketch, which is not installed: {how_to_add('corpus')}."
            ) from error
        self._limit = max(1, remembered // 2)
        self._new_minhash: Callable[[], Any] = MinHash(PERMUTATIONS, seed=1, hashfunc=int).copy
        self._new_index: Callable[[], Any] = lambda: MinHashLSH(threshold=SIMILAR, num_perm=PERMUTATIONS)
        self._young = self._old = self._new_index()
        self._signatures: dict[int, NDArray[np.uint64]] = {}  # (PERMUTATIONS,) per remembered document
        self._number = self._first_young = self._first_old = 0

    def keep(self, documents: Sequence[str]) -> Mask:
        """Return a mask of the documents that are not near copies of earlier ones."""
        return np.fromiter(map(self._is_new, documents), np.bool_, len(documents))

    def _is_new(self, document: str) -> bool:
        minhash = self._new_minhash()
        minhash.update_batch(shingle_hashes(document).tolist())
        generations = (self._young,) if self._young is self._old else (self._young, self._old)
        found = [number for index in generations for number in index.query(minhash)]
        if any((self._signatures[number] == minhash.hashvalues).mean() >= SIMILAR for number in found):
            return False
        self._remember(minhash)
        return True

    def _remember(self, minhash: Any) -> None:
        if self._number - self._first_young == self._limit:
            for number in range(self._first_old, self._first_young):
                del self._signatures[number]
            self._old, self._young = self._young, self._new_index()
            self._first_old, self._first_young = self._first_young, self._number
        self._young.insert(self._number, minhash, check_duplication=False)
        self._signatures[self._number] = minhash.hashvalues
        self._number += 1


def shingle_hashes(text: str) -> NDArray[np.uint64]:
    """Return hashes of a text's runs of words, or of characters if the script has no spaces.

    Always returns at least one hash, of 32 bits. Case, punctuation and white space are ignored.
    """
    words = WORD.findall(text.casefold())
    letters = "".join(words)
    if len(letters) > UNSPACED * len(words):
        units, length = np.frombuffer(letters.encode("utf-32-le", "surrogatepass"), np.uint32), SHINGLE_CHARACTERS
    else:
        hashed = (crc32(word.encode("utf-8", "surrogatepass")) for word in words)
        units, length = np.fromiter(hashed, np.uint32, len(words)), SHINGLE_WORDS
    if not words:  # only punctuation: use the text itself
        units = np.array([crc32(text.encode("utf-8", "surrogatepass"))], np.uint32)
    length = min(length, len(units))
    hashes = np.zeros(len(units) - length + 1, np.uint64)
    for place in range(length):  # integer overflow is intended
        hashes = (hashes ^ units[place : len(units) - length + 1 + place]) * MIX
        hashes ^= hashes >> np.uint64(29)
    return np.unique(hashes >> np.uint64(32))
