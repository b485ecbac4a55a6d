"""Rehearsal of a restore: a backup is restored into a scratch place, compared with its manifest, and removed.

The scratch place is a folder, removed by a process of its own if this one is killed, and by the next rehearsal if the
machine went down. A run on PostgreSQL is restored there too: into a schema of its own, in one transaction that is
undone, so a server keeps nothing of it however this ends.
"""

from __future__ import annotations

import fcntl
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from auth.errors import StorageError
from auth.files import write_private
from coordinator.backup.backup import Backup
from coordinator.backup.database import TableContent, contents, copy_rows, file_contents, read_only, sqlite_address
from coordinator.backup.manifest import DATABASE, RUN, read_manifest
from coordinator.backup.restore import SETTINGS, restore
from coordinator.checkpoints.manifest import file_entry
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.run.database_owner import open_database
from coordinator.run.settings import Settings
from coordinator.store.engine import open_engine, own_words, upgrade

SCRATCH = ".manyhands-rehearsal-"  # how scratch folders' names begin
LOCK = "lock"
VERSION_TABLE = "alembic_version"
# Waits until its input ends, which is when the rehearsal has ended, however; it loads nothing and needs no shell.
_REMOVER = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


@dataclass(frozen=True)
class Rehearsal:
    """The findings of a rehearsal in which everything came back as it is in the backup."""

    backup: Backup
    tables: Mapping[str, tuple[int, int]]  # rows in the backup, and restored
    same_version: bool  # the rows themselves were compared, too
    on_server: bool  # likewise on the run's PostgreSQL server


def rehearse(path: Path, scratch: Path | None = None) -> Rehearsal:
    """Restore a backup into a scratch folder and compare all tables and files; nothing of it stays.

    The folder is made in `scratch`, or beside the backup. Raises `StorageError` for the first difference.
    """
    path = path.absolute()
    manifest = read_manifest(path)
    backup = Backup(path, manifest)
    place = scratch or path.parent
    _require_room(place, backup.size_bytes + manifest.database.size_bytes)
    with scratch_folder(place) as folder:
        settings = Settings.from_yaml(path / RUN / SETTINGS)
        own_settings = folder / SETTINGS
        write_private(own_settings, settings.model_copy(update={"database_url": None}).to_yaml().encode())
        restored = restore(path, folder / "run", own_settings)
        for name in manifest.files.keys() - {SETTINGS}:
            if file_entry(restored.path / name) != manifest.files[name]:
                raise _failed(path, f"{name!r:.200} came back with another content")
        found = file_contents(restored.path / "manyhands.db")
        tables, same_version = _compare(backup, found)
        with open_database(restored):
            pass  # keys and database belong together
        if settings.database_url is not None:
            _rehearse_on_server(path, restored.path / "manyhands.db", settings.database_url)
    return Rehearsal(backup, tables, same_version, settings.database_url is not None)


def _compare(backup: Backup, found: Mapping[str, TableContent]) -> tuple[dict[str, tuple[int, int]], bool]:
    """Rows of each of the backup's tables before and after; an older version's rows may have gained columns."""
    expected = backup.manifest.tables
    same_version = expected.get(VERSION_TABLE) == found.get(VERSION_TABLE)
    tables: dict[str, tuple[int, int]] = {}
    for name, content in expected.items():
        rows = content.rows if name != "checkpoints" else _checkpoint_rows(backup)
        restored = found.get(name)
        if restored is None:
            raise _failed(backup.path, f"the table `{name}` is missing")
        if restored.rows != rows:
            raise _failed(backup.path, f"the table `{name}` came back with {restored.rows:,} rows instead of {rows:,}")
        if same_version and rows == content.rows and restored != content:
            raise _failed(backup.path, f"rows of the table `{name}` came back with another content")
        tables[name] = (rows, restored.rows)
    return tables, same_version


def _checkpoint_rows(backup: Backup) -> int:
    """The recorded checkpoints whose files are in the backup: a restore forgets the others."""
    with closing(read_only(backup.path / DATABASE)) as connection:
        steps = connection.execute("SELECT step FROM checkpoints").fetchall()
    return sum(checkpoint_name(step) in backup.checkpoints for [step] in steps)


def _rehearse_on_server(backup: Path, database: Path, address: str) -> None:
    """Copy all rows into a schema of their own on the run's server, compare, and undo it all."""
    source, server = open_engine(sqlite_address(database)), open_engine(address)
    schema = f"manyhands_rehearsal_{secrets.token_hex(8)}"
    try:
        with source.connect() as reading, server.connect() as writing, writing.begin() as transaction:
            writing.execute(text(f"CREATE SCHEMA {schema}"))
            writing.execute(text(f"SET LOCAL search_path TO {schema}"))
            upgrade(writing)
            copy_rows(reading, writing)
            same = contents(writing) == contents(reading)
            transaction.rollback()
    except DBAPIError as error:
        raise StorageError(
            f"{backup} restores whole into a folder, and the server that `database_url` names refuses the trial "
            f"({own_words(error)}): give its user the right to CREATE in the database, or look into the server's log."
        ) from error
    finally:
        source.dispose()
        server.dispose()
    if not same:
        raise _failed(backup, "the server that `database_url` names does not keep what is written to it")


def _failed(backup: Path, reason: str) -> StorageError:
    return StorageError(f"The backup {backup} does not restore to what it is of: {reason}. Make another one now.")


def _require_room(place: Path, size_bytes: int) -> None:
    """Raise `StorageError` before the disk of a run or of its backups is filled."""
    try:
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        raise StorageError(f"Cannot use {place} ({error.strerror}): name another folder by `--scratch`.") from error
    if free_bytes < size_bytes:
        raise StorageError(
            f"The rehearsal needs {size_bytes / 1e6:,.1f} MB in {place}, where {free_bytes / 1e6:,.1f} MB are free: "
            "name a folder with more room by `--scratch`."
        )


@contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """A private folder in `place` that is gone after the block, also if this process is killed meanwhile."""
    _sweep(place)
    folder = place / f"{SCRATCH}{secrets.token_hex(8)}"
    command = (sys.executable, "-I", "-S", "-c", _REMOVER, str(folder))
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # noqa: S603 - our own code
        try:
            folder.mkdir(0o700)
            with _held(folder):
                yield folder
        except OSError as error:
            raise StorageError(f"Cannot use {place} ({error.strerror}): name another folder by `--scratch`.") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which has its name only when it is held."""
    unheld = folder / f"{LOCK}.new"
    with unheld.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unheld.rename(folder / LOCK)
        yield


def _sweep(place: Path) -> None:
    """Remove the folders of rehearsals that ended with their machine; those that go on hold their locks."""
    for lock in place.glob(f"{SCRATCH}*/{LOCK}"):
        with suppress(OSError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
