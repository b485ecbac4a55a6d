"""The files of a run, copied with their digests and for their owner's eyes only."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from auth.errors import StorageError
from auth.files import make_private_directory
from coordinator.manifests import CHUNK_BYTES, FileEntry, file_entry

DATABASE_FILES = ("manyhands.db", "manyhands.db-wal", "manyhands.db-shm", "manyhands.db-journal")


def files_of(run: Path, checkpoints: bool) -> Iterator[Path]:
    """What is to be copied of a run's directory, relative to it, in order: all but the database and what is unfinished.

    Files that are being written have names with a dot in front. Links stand for what they lead to.
    """
    for folder, folders, names in os.walk(run, followlinks=True):
        at_top = Path(folder) == run
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if at_top and not checkpoints and "checkpoints" in folders:
            folders.remove("checkpoints")
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and not (at_top and name in DATABASE_FILES) and path.is_file():
                yield path.relative_to(run)


def copy_file(source: Path, target: Path) -> FileEntry:
    """Copy to a new file of mode 0600, on the disk when this returns; what was read is the entry."""
    _make_folders(target.parent)
    digest, size_bytes = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with source.open("rb") as reader, os.fdopen(descriptor, "wb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            writer.write(chunk)
            digest.update(chunk)
            size_bytes += len(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return FileEntry(size_bytes=size_bytes, sha256=digest.hexdigest())


def _make_folders(folder: Path) -> None:
    """With those above it, each for its owner alone."""
    if not folder.exists():
        _make_folders(folder.parent)
        make_private_directory(folder)


def check_file(folder: Path, name: str, entry: FileEntry) -> None:
    """Raise `StorageError` unless a plain file below the folder is what the entry says."""
    path = folder / name
    try:
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts
        right = inside and stat.S_ISREG(path.lstat().st_mode) and file_entry(path) == entry
    except OSError:
        right = False
    if not right:
        raise StorageError(f"{folder} is no whole backup: {name!r:.200} is missing or damaged.")


def sync_folders(top: Path) -> None:
    """Have the names of all files below on the disk, too."""
    for folder, _, _ in os.walk(top):
        sync_folder(Path(folder))


def sync_folder(folder: Path) -> None:
    """Have the names of the files in it on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
