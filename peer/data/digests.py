"""Digests of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

BLOCK_BYTES = 1 << 18


def sha256_of(path: Path) -> bytes:
    """The SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.digest()
