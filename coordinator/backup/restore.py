"""Restoration of a run from a backup to a new directory and the empty database in its settings.

The directory is renamed last, after verification, so an interrupted restore can be repeated.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from auth.errors import StorageError
from auth.files import make_private_directory, new_directory, sync, write_private
from coordinator.backup.backup import copy_file, open_backup, require_files, seal
from coordinator.backup.database import contents, copy_rows, count_rows, sqlite_address
from coordinator.backup.manifest import DATABASE, RUN, Backup, read_backup
from coordinator.ledger.recorded_checkpoints import checkpoints, forget_checkpoints
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.run.database_owner import open_database, require_unused
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import Database, migrate, open_engine, own_words

SETTINGS = "settings.yaml"


def restore(backup_path: Path, target: Path, settings_file: Path | None = None) -> RunDirectory:
    """Restore the run from a backup to the new directory `target`, atomically, and verify the copy.

    `settings_file` replaces the backup's settings.yaml, to change host, ports or database. Raises
    `ConfigError` if the directory or the database already holds a run.
    """
    target = target.absolute()
    new_settings = None if settings_file is None else Settings.from_yaml(settings_file)
    with new_directory(target, 0o700, "a run is never overwritten; name another directory") as aside:
        backup, run = open_backup(backup_path), RunDirectory(aside)
        manifest, database = backup.manifest, aside / "manyhands.db"
        for name in manifest.files:
            copy_file(backup.path / RUN / name, aside / name)
        copy_file(backup.path / DATABASE, database)
        require_files(aside, {**manifest.files, database.name: manifest.database})
        _require_rows(backup, database)
        for folder in (run.keys_dir, run.keeper_dir, run.tokenizer_dir, run.checkpoints_dir):  # not backed up if empty
            make_private_directory(folder)
        if new_settings is not None:
            write_private(aside / SETTINGS, new_settings.to_yaml().encode())
        _bring_up_to_date(backup, database)
        seal(aside)
        if run.settings.database_url is not None:
            _move_rows(database, run.settings.database_url)
    sync(target.parent)
    return RunDirectory.open(target)


def check(backup_path: Path, scratch: Path | None = None) -> Backup:
    """Test a backup by restoring it to a temporary folder in `scratch` or beside the backup.

    The database is restored to a SQLite file. Raises `StorageError` if any data is lost.
    """
    backup = read_backup(backup_path.absolute())
    place = scratch or backup.path.parent
    try:
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < backup.size_bytes + backup.manifest.database.size_bytes:
            raise StorageError(
                f"The check needs {backup.size_bytes / 1e6:,.1f} MB in {place}, where {free_bytes / 1e6:,.1f} MB are "
                "free: name a folder with more room by `--scratch`."
            )
        with TemporaryDirectory(prefix=f".{backup.path.name}.", suffix=".new", dir=place) as folder:
            settings = Settings.from_yaml(backup.path / RUN / SETTINGS).model_copy(update={"database_url": None})
            settings_file = Path(folder, SETTINGS)
            write_private(settings_file, settings.to_yaml().encode())
            with open_database(restore(backup.path, Path(folder, "run"), settings_file)):
                pass  # opening verifies that keys and database match
    except OSError as error:
        raise StorageError(f"Cannot use {place} ({error.strerror}): name another folder by `--scratch`.") from error
    return backup


def _require_rows(backup: Backup, database: Path) -> None:
    """Raise `StorageError` unless each table of the copy has as many rows as the manifest states."""
    rows, expected = count_rows(database), backup.manifest.tables
    if lost := [name for name, count in expected.items() if rows.get(name) != count]:
        raise StorageError(
            f"The backup {backup.path} does not restore to what it is of: the table `{lost[0]}` comes back with "
            f"{rows.get(lost[0], 0):,} rows instead of {expected[lost[0]]:,}."
        )


def _bring_up_to_date(backup: Backup, database: Path) -> None:
    """Migrate the restored database file, and delete the rows of checkpoints that the backup lacks."""
    engine = open_engine(sqlite_address(database))
    try:
        migrate(engine)
        sessions = Database(engine)
        gone = [row.step for row in checkpoints(sessions) if checkpoint_name(row.step) not in backup.checkpoints]
        forget_checkpoints(sessions, gone)
    except DBAPIError as error:
        raise StorageError(f"The database cannot be written ({error.orig}): is the disk full?") from error
    finally:
        engine.dispose()


def _move_rows(database: Path, address: str) -> None:
    """Move all rows of a SQLite file to an empty database in one transaction, and verify the copy.

    A database with exactly these rows is also accepted: a killed restore may have filled it.
    """
    source, target = open_engine(sqlite_address(database)), open_engine(address, create=True)
    try:
        if not _are_equal(source, target):
            require_unused(target)
            migrate(target)
            with source.connect() as reading, target.begin() as writing:
                copy_rows(reading, writing)
    except DBAPIError as error:
        raise StorageError(
            f"The database that `database_url` names does not take the run: {own_words(error)}."
        ) from error
    finally:
        source.dispose()
        target.dispose()
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()


def _are_equal(source: Engine, target: Engine) -> bool:
    try:
        with target.connect() as there, source.connect() as here:
            return contents(there) == contents(here)
    except DBAPIError:  # the tables are missing or from another version
        return False
