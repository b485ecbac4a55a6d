"""A folder in one encrypted file that a passphrase opens: a tar of two files in age's format (age-encryption.org).

    identity.age    a key, made for this archive alone, under the passphrase
    folder.tar.age  the folder, for that key: in chunks that are authenticated, so nothing of it can be cut off or moved

So `tar` and `age` open it, too. Neither end needs more memory or disk than the streams that pass.
"""

from __future__ import annotations

import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import IO, BinaryIO

import pyrage

from auth.errors import ConfigError, StorageError

IDENTITY, FOLDER = "identity.age", "folder.tar.age"
BLOCK_BYTES = 512  # of a tar
MAX_IDENTITY_BYTES = 16 * 1024
Failures = list[Exception]


def seal(folder: Path, target: Path, passphrase: str) -> None:
    """Write the folder's files to `target`, a new file of mode 0600, whole or not at all.

    Raises `ConfigError` where there is something already, and `StorageError`.
    """
    aside = target.with_name(f".{target.name}.writing")
    if target.exists():
        raise ConfigError(f"{target} exists already: name a file that is not there yet.")
    try:
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            _write_archive(folder, file, passphrase)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(target)
    except (OSError, pyrage.EncryptError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"{target} cannot be written ({reason}): nothing is left of it.") from error
    finally:
        aside.unlink(missing_ok=True)


def unseal(archive: Path, passphrase: str, into: Path) -> None:
    """Write the archive's files below `into`, each of mode 0600; raises `ConfigError` and `StorageError`."""
    try:
        with tarfile.open(archive, "r:") as outer:
            identity = _identity(_content(outer, IDENTITY).read(MAX_IDENTITY_BYTES), passphrase)
            with _opened(_content(outer, FOLDER), identity) as inner:
                _extract(inner, into)
    except FileNotFoundError as error:
        raise ConfigError(f"{archive} is not there.") from error
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise StorageError(f"{archive} is cut off, damaged, or no archive of a run.") from error
    except OSError as error:
        reason = error.strerror or "it is cut off or damaged"
        raise StorageError(f"{archive} cannot be taken over ({reason}): nothing was made of it.") from error


def _identity(sealed: bytes, passphrase: str) -> pyrage.x25519.Identity:
    try:
        return pyrage.x25519.Identity.from_str(pyrage.passphrase.decrypt(sealed, passphrase).decode("ascii"))
    except pyrage.DecryptError as error:
        raise ConfigError("The passphrase is not the archive's, or the archive is damaged.") from error


def _write_archive(folder: Path, file: BinaryIO, passphrase: str) -> None:
    identity = pyrage.x25519.Identity.generate()
    with _member(file, IDENTITY):
        file.write(pyrage.passphrase.encrypt(str(identity).encode("ascii"), passphrase))
    failures: Failures = []
    with _member(file, FOLDER), _piped(lambda pipe: _pack(folder, pipe), failures) as packed:
        pyrage.encrypt_io(packed, file, [identity.to_public()])
    _raise_first(failures)
    file.write(b"\0" * 2 * BLOCK_BYTES)


@contextmanager
def _member(file: BinaryIO, name: str) -> Iterator[None]:
    """What the block writes is a file of this tar: its header, which has the size, is filled in afterwards."""
    began = file.tell()
    file.write(b"\0" * BLOCK_BYTES)
    yield
    info = tarfile.TarInfo(name)
    info.size, info.mode = file.tell() - began - BLOCK_BYTES, 0o600
    file.write(b"\0" * (-info.size % BLOCK_BYTES))
    end = file.tell()
    file.seek(began)
    file.write(info.tobuf(tarfile.GNU_FORMAT))
    file.seek(end)


@contextmanager
def _piped(produce: Callable[[BinaryIO], None], failures: Failures) -> Iterator[BinaryIO]:
    """What a thread produces, to be read; when the block has ended, `failures` says what it failed with."""
    reading, writing = os.pipe()

    def work() -> None:
        try:
            with os.fdopen(writing, "wb") as pipe:
                produce(pipe)
        except Exception as error:  # noqa: BLE001 - told to whoever reads
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        with os.fdopen(reading, "rb") as pipe:
            yield pipe
    finally:
        thread.join()


def _pack(folder: Path, pipe: BinaryIO) -> None:
    with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(str(path.relative_to(folder)))
                info.size, info.mode = path.stat().st_size, 0o600
                with path.open("rb") as content:
                    tar.addfile(info, content)


@contextmanager
def _opened(sealed: IO[bytes], identity: pyrage.x25519.Identity) -> Iterator[tarfile.TarFile]:
    """The folder's tar; when the block has ended, all of it was authenticated."""
    failures: Failures = []
    try:
        with _piped(lambda pipe: pyrage.decrypt_io(sealed, pipe, [identity]), failures) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as tar:
                yield tar
            while packed.read(1 << 20):  # to its end, without which the last chunk would not be looked at
                pass
    except tarfile.TarError:
        _raise_first(failures)
        raise
    _raise_first(failures)


def _raise_first(failures: Failures) -> None:
    for error in failures:
        raise OSError(getattr(error, "errno", None), getattr(error, "strerror", None)) from error


def _content(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    content = tar.extractfile(name)
    if content is None:
        raise KeyError(name)
    return content


def _extract(tar: tarfile.TarFile, into: Path) -> None:
    """Plain files only, below `into`, whatever the archive says."""
    for member in tar:
        name = Path(member.name)
        content = tar.extractfile(member) if member.isreg() else None
        if content is None or name.is_absolute() or ".." in name.parts:
            raise tarfile.ExtractError(member.name)
        target = into / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            copyfileobj(content, file, 1 << 20)
