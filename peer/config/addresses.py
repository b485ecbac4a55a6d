"""Addresses of files in a run file: paths here, and stores of files that every volunteer's machine opens."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
# What a volunteer's machine opens on an operator's word: stores of files, nothing that runs, caches or logs in.
SCHEMES = ("abfs", "abfss", "az", "gcs", "gs", "hf", "http", "https", "memory", "s3", "s3a")


def is_remote(address: str) -> bool:
    """Whether it names a place elsewhere, and not a path on this machine."""
    return _SCHEME.match(address) is not None


def check_address(key: str, address: str) -> None:
    """Raise `ValueError`, naming the run file's `key`, for an address that a volunteer's machine shall not open."""
    scheme = _SCHEME.match(address)
    if "::" in address or (scheme and scheme.group(1) not in SCHEMES):
        raise ValueError(f"`{key}` ({address}) must be a local path, or one of {', '.join(SCHEMES)} with `://`")
