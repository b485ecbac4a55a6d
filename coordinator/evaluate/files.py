"""A task's files: on this machine or the web, plain or gzip, and what their digest says they are."""

from __future__ import annotations

import gzip
import hashlib
import io
import urllib.request
import zlib
from pathlib import Path

from auth.errors import ConfigError, UnreachableError
from auth.files import make_private_directory, write_private
from peer.config.evaluation import Examples, is_web

TIMEOUT_S = 60.0
MAX_FILE_BYTES = 512 * 2**20


def read_text(examples: Examples, base: Path, cache: Path, *, confined: bool = False) -> str:
    """The file's text, unpacked; a path is relative to `base`, a web address is fetched once into `cache`.

    `confined`: somebody else wrote the path, so it may not leave `base`. Raises `ConfigError` for a file that is
    missing, not what its digest says, or no UTF-8 text.
    """
    inside = (base / examples.path).resolve().is_relative_to(base.resolve())
    if confined and not is_web(examples.path) and not inside:
        raise ConfigError(f"{examples.path} is outside of {base}: a task from elsewhere may only name files within it.")
    raw = _fetched(examples, cache) if is_web(examples.path) else _read(base / examples.path)
    if examples.sha256 is not None and hashlib.sha256(raw).hexdigest() != examples.sha256:
        raise ConfigError(f"{examples.path} is not the file that `sha256` ({examples.sha256[:12]}...) names.")
    try:
        content = _unpacked(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{examples.path} is damaged: it cannot be unpacked ({error}).") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{examples.path}, line {line} is not UTF-8 text: convert the file.") from error


def _unpacked(raw: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise EOFError(f"it has more than {MAX_FILE_BYTES // 2**20} MiB")
    return content


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES // 2**20} MiB: take a part of it.")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read the examples in {path}: {error.strerror}.") from error


def _fetched(examples: Examples, cache: Path) -> bytes:
    """The file at a web address, which has a digest; kept by that."""
    assert examples.sha256 is not None  # `Examples` sees to it
    kept = cache / examples.sha256
    if kept.is_file():
        return _read(kept)
    try:
        with urllib.request.urlopen(examples.path, timeout=TIMEOUT_S) as answer:  # noqa: S310  # http or https
            raw: bytes = answer.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UnreachableError(f"{examples.path} cannot be fetched ({error}).") from error
    if hashlib.sha256(raw).hexdigest() == examples.sha256:
        make_private_directory(cache)
        write_private(kept, raw)
    return raw
