"""Files of the run on the peer's disk: written aside, checked against size and digest, and only then put in place."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from auth.errors import RequestError, StorageError
from peer.protocol import CHUNK_BYTES, MAX_FILE_BYTES


def sha256_of(path: Path) -> bytes:
    """The SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    return digest.digest()


def has_digest(path: Path, digest: bytes) -> bool:
    """Whether the file is there and its SHA-256 is `digest`."""
    try:
        return hmac.compare_digest(sha256_of(path), digest)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror}.") from error


class IncomingFile:
    """A file that is being received; more than its announced size is never written."""

    def __init__(self, file: BinaryIO, name: str, size_bytes: int) -> None:
        self._file, self._name, self._left = file, name, size_bytes
        self._digest = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        """Append a chunk."""
        self._left -= len(chunk)
        if self._left < 0:
            raise StorageError(f"The file {self._name} arrived damaged: it is longer than announced; try again.")
        self._digest.update(chunk)
        self._file.write(chunk)

    def finish(self, digest: bytes) -> None:
        """Check that all of it arrived, and nothing else, and bring it to the disk."""
        if self._left or not hmac.compare_digest(self._digest.digest(), digest):
            raise StorageError(
                f"The file {self._name} arrived damaged: its SHA-256 is not the announced one; try again."
            )
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def incoming_file(into: Path, name: str, digest: bytes, size_bytes: int) -> Iterator[IncomingFile]:
    """Receive `into / name` in the block: the file takes that name at its end, if size and digest are as announced."""
    if name != Path(name).name or name in ("", ".", ".."):
        raise RequestError(f"The coordinator names a file {name!r}, which is not a plain file name.")
    if size_bytes > MAX_FILE_BYTES:
        raise RequestError(f"The coordinator's file {name} has {size_bytes} bytes; {MAX_FILE_BYTES} are allowed.")
    aside = into / f".{name}.part"
    try:
        into.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            incoming = IncomingFile(file, name, size_bytes)
            yield incoming
            incoming.finish(digest)
        aside.replace(into / name)
    except OSError as error:
        raise StorageError(f"Cannot write {into / name}: {error.strerror}.") from error
    finally:
        aside.unlink(missing_ok=True)
