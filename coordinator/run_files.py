"""The run's files that peers may fetch: those of the tokenizer's directory that a peer would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from auth.errors import StorageError
from peer.data.digests import sha256_of
from peer.file_fetch import is_served_name


@dataclass(frozen=True)
class RunFile:
    """One file as it was when the service started."""

    path: Path
    size_bytes: int
    sha256: bytes


def list_run_files(directory: Path) -> Mapping[str, RunFile]:
    """The files of a directory by name; links, subdirectories and what no peer would take are left out."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.is_file() and not path.is_symlink())
        return {
            path.name: RunFile(path, path.stat().st_size, sha256_of(path))
            for path in paths
            if is_served_name(path.name)
        }
    except OSError as error:
        raise StorageError(f"Cannot read the run's files in {directory}: {error.strerror}.") from error
