"""Secrets in a run's directory, and checks that other users cannot read them.

`coordinator serve` refuses to start if another user can read a secret; the doctor reports the file.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from auth.errors import ConfigError
from coordinator.run.directory import RunDirectory

MAX_SECRET_BYTES = 4096


def read_secret(path: Path, setting: str) -> str:
    """Read a secret file. Raises `ConfigError` if the file is missing, empty or not private."""
    key = f"`{setting}` ({path})"
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{key} can be read by others: `chmod 600` it.")
        secret = path.read_bytes()[:MAX_SECRET_BYTES].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} cannot be read ({getattr(error, 'strerror', 'not ASCII')}).") from error
    if not secret:
        raise ConfigError(f"{key} is empty.")
    return secret


def check_secrets(directory: RunDirectory) -> None:
    """Raise `ConfigError` with a remedy for the first secret that other users can read.

    Database files, which earlier versions left readable to others, are first set to mode 0600.
    """
    for path in _database_files(directory):
        with suppress(OSError):  # another user owns the file; `exposed` reports this
            path.chmod(0o600)
    for complaint in exposed(directory):
        raise ConfigError(complaint)


def exposed(directory: RunDirectory) -> Iterator[str]:
    """Yield a sentence for each secret that others can read or that another user owns."""
    folders = [folder for folder in (directory.keys_dir, directory.keeper_dir) if folder.is_dir()]
    for folder in folders:
        yield from _judge(folder, "700")
        for path in sorted(folder.iterdir()):
            if path.suffix != ".crt":  # certificates are public
                yield from _judge(path, "600")
    yield from _judge(directory.path / "settings.yaml", "600")  # `database_url` may contain a password
    for path in _database_files(directory):
        yield from _judge(path, "600")


def _database_files(directory: RunDirectory) -> list[Path]:
    """Return the SQLite database in the run's directory, with its journal files."""
    return sorted(directory.path.glob("manyhands.db*"))


def _judge(path: Path, mode: str) -> Iterator[str]:
    try:
        status = path.stat()
    except FileNotFoundError:  # the file has just been removed
        return
    if stat.S_IMODE(status.st_mode) & 0o077:
        found = stat.filemode(status.st_mode)
        yield f"{path} can be read by others ({found}): run `chmod {mode} {shlex.quote(str(path))}`."
    if os.geteuid() not in (0, status.st_uid):
        yield f"{path} belongs to another user ({status.st_uid}): serve as that one, or give it to this one."
