"""Streaming of a checkpoint as a tar archive, uncompressed so that its size is known in advance.

The archive is deterministic: the same checkpoint always gives the same bytes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auth.errors import StorageError
from coordinator.checkpoints.manifest import MANIFEST, StoredCheckpoint

PIECE_BYTES = 64 * 1024
END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True)
class Tarball:
    """A tar archive with the files of a checkpoint in one folder."""

    files: tuple[tuple[bytes, Path, int], ...]  # tar header, file path, and file size in bytes, for each file

    @classmethod
    def of(cls, stored: StoredCheckpoint, folder: str) -> Tarball:
        """Return an archive of a checkpoint with its manifest; raises `OSError` if the manifest is missing."""
        sizes = {MANIFEST: (stored.path / MANIFEST).stat().st_size}
        sizes |= {name: entry.size_bytes for name, entry in stored.manifest.files.items()}
        created = int(stored.manifest.created_at)
        files = [(_header(f"{folder}/{name}", size, created), stored.path / name, size) for name, size in sizes.items()]
        return cls(tuple(files))

    @property
    def size_bytes(self) -> int:
        """The size of the archive in bytes."""
        return sum(len(header) + size + _padding(size) for header, _, size in self.files) + len(END)

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive in pieces; raises `OSError` or `StorageError` if a file is removed or truncated."""
        for header, path, size in self.files:
            yield header
            yield from _content(path, size)
            yield bytes(_padding(size))
        yield END


def _header(name: str, size: int, created: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, created
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE


def _content(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            left -= len(piece)
            yield piece
    if left:
        raise StorageError(f"{path.name} is shorter than its manifest says.")
