"""Atomic writes of files and directories, cached reads of changing files, and file digests.

All processes with state on disk use these functions, so that neither a crash nor a concurrent
process leaves a partial file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from auth.errors import ConfigError, StorageError

BLOCK_BYTES = 1 << 18
OTHER_DIRECTORY = "choose another directory"
Value = TypeVar("Value")
_Version = tuple[int, int, int]  # mtime_ns, size, inode


def write_private(path: Path, content: bytes, replace: bool = True) -> None:
    """Write a file of mode 0600 atomically, so readers see either the old or the new content.

    With `replace=False`, an existing file is kept. Two processes that create a file concurrently
    then both read the content that was written first.
    """
    aside: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        aside = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            aside.replace(path)
        else:
            _link_unless_present(aside, path)
    except OSError as error:
        raise StorageError(f"Cannot write {path} ({error.strerror}): check the disk and the permissions.") from error
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)


def _link_unless_present(aside: Path, path: Path) -> None:
    try:
        os.link(aside, path)
    except FileExistsError:
        return


def sync(path: Path) -> None:
    """Flush a file or the entries of a directory to disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(path: Path) -> None:
    """Create a directory and its parents, accessible to the owner only."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot make the directory {path} ({error.strerror}).") from error


def require_free(path: Path, remedy: str = OTHER_DIRECTORY) -> None:
    """Raise `ConfigError`, with a remedy, unless `path` is an empty directory or does not exist."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists and is not empty: {remedy}.")


@contextmanager
def new_directory(path: Path, mode: int = 0o755, remedy: str = OTHER_DIRECTORY) -> Iterator[Path]:
    """Yield a temporary directory; rename it to `path` on success, and remove it on failure.

    Raises `ConfigError` if `path` is a nonempty directory, a symbolic link or a mount point.
    `remedy` is the advice in the message for a nonempty directory.
    """
    path = path.absolute()
    require_free(path, remedy)
    if path.is_symlink() or path.is_mount():
        raise ConfigError(f"{path} is a symbolic link or a mount point: name a directory in it.")
    aside = path.parent / f".{path.name}.{secrets.token_hex(4)}.new"
    try:
        aside.mkdir(mode, parents=True)
        yield aside
        aside.rename(path)
    except OSError as error:
        raise StorageError(f"Cannot make the directory {path} ({error.strerror}).") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class WatchedFile(Generic[Value]):
    """The parsed content of a file, parsed again after another process has replaced the file."""

    def __init__(self, path: Path, parse: Callable[[bytes], Value]) -> None:
        self.path = path
        self._parse = parse
        self._seen: tuple[_Version, Value] | None = None

    def read(self) -> Value | None:
        """Return the parsed content, or None if there is no file. Unchanged files are not reread."""
        try:
            version = _version(self.path.stat())
            if self._seen is None or self._seen[0] != version:
                self._seen = (version, self._parse(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"Cannot read {self.path} ({error.strerror}).") from error
        return self._seen[1]


def _version(status: os.stat_result) -> _Version:
    return status.st_mtime_ns, status.st_size, status.st_ino


def sha256_of(path: Path) -> bytes:
    """Return the SHA-256 digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.digest()
