"""Checkpoints on disk: one folder each, with a manifest listing every file's size and SHA-256.

The module reads no tensors, so code that serves or publishes checkpoints does not need PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from auth.errors import StorageError
from coordinator.run.checkpoint_names import checkpoint_name

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
CHUNK_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 1 << 20


class FileEntry(BaseModel):
    """The size and SHA-256 digest of a file in a checkpoint or backup."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size_bytes: int
    sha256: str


class Manifest(BaseModel):
    """The manifest of a checkpoint: run, step, era, probe loss and files."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format_version: int
    run: str
    step: int
    era: int
    created_at: float  # Unix time in seconds
    probe_loss: float | None
    files: dict[str, FileEntry]


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint on disk that has been verified against its manifest."""

    path: Path
    manifest: Manifest
    manifest_sha256: str

    @property
    def size_bytes(self) -> int:
        """The total size of all files except the manifest."""
        return sum(entry.size_bytes for entry in self.manifest.files.values())


def verify(path: Path, files: Collection[str] | None = None) -> StoredCheckpoint:
    """Verify files (default: all) against the manifest; raises `StorageError` if one differs."""
    try:
        raw = _read_manifest(path / MANIFEST)
        manifest = Manifest.model_validate(json.loads(raw))
        for name, entry in manifest.files.items():
            wanted = files is None or name in files
            if Path(name).name != name or (wanted and not matches(path / name, entry)):
                raise StorageError(f"{path.name}: {name} does not match the manifest.")
    except (OSError, ValueError, ValidationError, RecursionError) as error:  # deeply nested JSON raises RecursionError
        raise StorageError(f"{path.name}: no complete checkpoint ({error}).") from error
    return StoredCheckpoint(path, manifest, hashlib.sha256(raw).hexdigest())


def newest_verified(directory: Path) -> StoredCheckpoint | None:
    """Return the newest undamaged checkpoint in a folder, or None if there is none."""
    for path in sorted(directory.glob("step-*"), reverse=True):
        with suppress(StorageError):
            return verify(path)
    return None


def stored_steps(directory: Path) -> list[int]:
    """Return the sorted steps of all checkpoints in the folder, including damaged checkpoints."""
    return sorted(int(path.name.removeprefix("step-")) for path in directory.glob("step-*"))


def remove_steps(directory: Path, steps: Collection[int]) -> None:
    """Remove the checkpoints of these steps."""
    for step in steps:
        shutil.rmtree(directory / checkpoint_name(step))


def remove_leftovers(directory: Path) -> None:
    """Remove the incomplete checkpoints of a killed keeper; no keeper may be writing meanwhile."""
    for path in directory.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def file_entry(path: Path) -> FileEntry:
    """Return the manifest entry of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return FileEntry(size_bytes=path.stat().st_size, sha256=digest.hexdigest())


def _read_manifest(path: Path) -> bytes:
    """Return the content of a manifest; raises `ValueError` if it is too large or not a regular file."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_MANIFEST_BYTES:
        raise ValueError(f"{path.name} is no plain file of at most {MAX_MANIFEST_BYTES} bytes")
    return path.read_bytes()


def matches(path: Path, entry: FileEntry) -> bool:
    """Return whether the path is a regular file with the size and digest of the manifest entry."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_size == entry.size_bytes and file_entry(path) == entry
