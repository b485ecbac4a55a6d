"""How much disk this device's files take, and what is thrown away first when that is too much: the cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path

DATA_FOLDER = "data"  # in the state directory
CACHE_FOLDER = "cache"  # in the data folder; whatever lies in it can be fetched again
IN_USE_S = 600.0  # a file that was read or written so recently is left alone
# What keeps files between runs, by the variables that say where. A login stays where it is.
CACHES = {"HF_HUB_CACHE": "hub", "HF_XET_CACHE": "xet", "HF_DATASETS_CACHE": "datasets", "HF_ASSETS_CACHE": "assets"}


def cache_within(data_dir: Path, environment: MutableMapping[str, str]) -> None:
    """Have the libraries keep what they fetch in this device's folder; call it before they are imported."""
    for variable, folder in CACHES.items():
        environment.setdefault(variable, str(data_dir / CACHE_FOLDER / folder))


def disk_use(folder: Path) -> int:
    """Bytes that the files below a folder take."""
    return sum(size for _, _, size in _files(folder))


def clean_cache(folder: Path, keep_bytes: int, now: float) -> int:
    """Delete files below `folder`, those unused longest first, until it takes `keep_bytes`; returns what is left.

    Files in use are left alone, so more may be left than was to be kept.
    """
    found = sorted(_files(folder))
    left = sum(size for _, _, size in found)
    for used_at, path, size in found:
        if left <= keep_bytes or used_at > now - IN_USE_S:
            break
        with suppress(OSError):
            Path(path).unlink()
            left -= size
    return left


def _files(folder: Path) -> Iterator[tuple[float, str, int]]:
    """When each was used last (Unix seconds), where it is, and its bytes; links are neither followed nor counted."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118 - there may be many of them
            with suppress(OSError):
                status = os.lstat(path)
                if not os.path.islink(path):  # noqa: PTH114
                    yield max(status.st_mtime, status.st_atime), path, status.st_blocks * 512
