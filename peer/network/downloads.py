"""Downloads of the run's files to a temporary name, renamed after verification.

Size and digest must match the announcement. Names from a coordinator cannot refer to files outside
the given directory, and file types that a library might execute are rejected.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from auth.errors import RequestError, StorageError
from auth.files import sha256_of
from peer.protocol import MAX_FILE_BYTES

# Plain names of data files: no folders, hidden files or formats that may contain code (.pt, .py).
_SERVED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}\.(json|json\.gz|model|txt|safetensors)")


def is_served_name(name: str) -> bool:
    """Return whether a file of this name may belong to a run."""
    return _SERVED.fullmatch(name) is not None


def check_announced(name: str, size_bytes: int) -> None:
    """Raise `RequestError` if an announced file's name is not allowed or its size is too large."""
    if not is_served_name(name):
        raise RequestError(
            f"The coordinator names a file {name!r:.120}, which is not taken: it must be a plain name "
            "that ends in .json, .json.gz, .model, .txt or .safetensors."
        )
    if size_bytes > MAX_FILE_BYTES:
        raise RequestError(f"The coordinator's file {name} has {size_bytes} bytes; {MAX_FILE_BYTES} are allowed.")


def has_digest(path: Path, digest: bytes) -> bool:
    """Return whether a path is a regular file (not a link, pipe or device) with this SHA-256."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        return hmac.compare_digest(sha256_of(path), digest)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror}.") from error


class IncomingFile:
    """A file being received, of at most the announced size."""

    def __init__(self, file: BinaryIO, name: str, size_bytes: int) -> None:
        self._file, self._name, self._left = file, name, size_bytes
        self._digest = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises `StorageError` if the file becomes larger than announced."""
        self._left -= len(chunk)
        if self._left < 0:
            raise StorageError(f"The file {self._name} arrived damaged: it is longer than announced; try again.")
        self._digest.update(chunk)
        self._file.write(chunk)

    def finish(self, digest: bytes) -> None:
        """Sync the file to disk. Raises `StorageError` unless size and SHA-256 are as announced."""
        if self._left or not hmac.compare_digest(self._digest.digest(), digest):
            raise StorageError(
                f"The file {self._name} arrived damaged: its SHA-256 is not the announced one; try again."
            )
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def incoming_file(into: Path, name: str, digest: bytes, size_bytes: int) -> Iterator[IncomingFile]:
    """Receive a file in the `with` block; rename it to `into / name` if size and digest match."""
    check_announced(name, size_bytes)
    aside = into / f".{name}.part"
    try:
        into.mkdir(parents=True, exist_ok=True)
        with _new_file(aside) as file:
            incoming = IncomingFile(file, name, size_bytes)
            yield incoming
            incoming.finish(digest)
        aside.replace(into / name)
    except OSError as error:
        raise StorageError(f"Cannot write {into / name}: {error.strerror}.") from error
    finally:
        aside.unlink(missing_ok=True)


def _new_file(path: Path) -> BinaryIO:
    """Create an empty file for writing; replace an existing file or link, without following it."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb")
