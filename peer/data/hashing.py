"""A document's hash, and the number in [0, 1) that it draws: what every peer must decide alike is decided by these."""

from __future__ import annotations

from hashlib import blake2b

BITS = 64


def document_hash(text: str, salt: str = "") -> int:
    """64 bits of BLAKE2b of the text without the white space around it; another salt gives an independent hash."""
    digest = blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=BITS // 8, person=salt.encode()[:16])
    return int.from_bytes(digest.digest(), "big")


def uniform(text: str, salt: str) -> float:
    """The document's own number, uniform in [0, 1): the same on every machine, independent for each salt."""
    return document_hash(text, salt) / (1 << BITS)
