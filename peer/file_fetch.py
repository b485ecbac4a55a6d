"""Files of the run on the peer's disk: written aside, checked against size and digest, and only then put in place."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import AsyncIterator
from pathlib import Path

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


async def write_verified(chunks: AsyncIterator[bytes], name: str, digest: bytes, size_bytes: int, into: Path) -> Path:
    """Write `chunks` to `into / name`; a file of another size or digest never takes that name."""
    if name != Path(name).name or name in ("", ".", ".."):
        raise RequestError(f"The coordinator names a file {name!r}, which is not a plain file name.")
    if size_bytes > MAX_FILE_BYTES:
        raise RequestError(f"The coordinator's file {name} has {size_bytes} bytes; at most {MAX_FILE_BYTES} are allowed.")
    aside = into / f".{name}.part"
    try:
        into.mkdir(parents=True, exist_ok=True)
        received = await _write_checked(chunks, aside, size_bytes)
        if not hmac.compare_digest(received, digest):
            raise StorageError(f"The file {name} arrived damaged: its SHA-256 is not the announced one; try again.")
        os.replace(aside, into / name)
    except OSError as error:
        raise StorageError(f"Cannot write {into / name}: {error.strerror}.") from error
    finally:
        aside.unlink(missing_ok=True)
    return into / name


async def _write_checked(chunks: AsyncIterator[bytes], aside: Path, size_bytes: int) -> bytes:
    """Write chunks as they come and return their SHA-256; more than `size_bytes` is never written."""
    digest, written = hashlib.sha256(), 0
    with aside.open("wb") as file:
        async for chunk in chunks:
            written += len(chunk)
            if written > size_bytes:
                break
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if written != size_bytes:
        raise StorageError(f"The file {aside.name} arrived damaged: it should have {size_bytes} bytes; try again.")
    return digest.digest()
