"""Restoring a run from a backup: to a new directory, and to the database that its settings name, which must be empty.

The directory takes its name last, when all else is done and proved; so a restore that is killed can be run again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from auth.errors import ConfigError, StorageError
from auth.files import make_private_directory, new_directory, write_private
from coordinator.backup.backup import Backup, copy_file, open_backup, sync_folder, sync_folders
from coordinator.backup.database import TableContent, contents, copy_rows, sqlite_address
from coordinator.backup.manifest import DATABASE, RUN
from coordinator.ledger.presence import checkpoints, forget_checkpoints
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import Database, is_empty, migrate, open_engine, own_words

SETTINGS = "settings.yaml"


def restore(backup_path: Path, target: Path, settings_file: Path | None = None) -> RunDirectory:
    """Make the run of a backup anew in `target`, whole and verified or not at all.

    `settings_file` replaces the backup's settings.yaml: another host, other ports, another database.
    Raises `ConfigError` where there is a run already, in the directory or in the database.
    """
    target = target.absolute()
    new_settings = None if settings_file is None else Settings.from_yaml(settings_file)
    with new_directory(target, 0o700, "a run is never overwritten; name another directory") as aside:
        backup = open_backup(backup_path)
        _copy_files(backup, aside)
        if new_settings is not None:
            write_private(aside / SETTINGS, new_settings.to_yaml().encode())
        _restore_database(backup, RunDirectory(aside))
        sync_folders(aside)
    sync_folder(target.parent)
    return RunDirectory.open(target)


def _copy_files(backup: Backup, aside: Path) -> None:
    """Copy the run's files, compared with the manifest once more, and make the folders that may be empty."""
    for name, entry in backup.manifest.files.items():
        if copy_file(backup.path / RUN / name, aside / name) != entry:
            raise StorageError(f"{name!r:.200} has changed while it was restored from {backup.path}.")
    empty = RunDirectory(aside)
    for folder in (empty.keys_dir, empty.keeper_dir, empty.tokenizer_dir, empty.checkpoints_dir):
        make_private_directory(folder)


def _restore_database(backup: Backup, unfinished: RunDirectory) -> None:
    """Bring the backup's database to this version's tables, aside, and from there to where the settings say."""
    staged = unfinished.path / "manyhands.db"
    if copy_file(backup.path / DATABASE, staged) != backup.manifest.database:
        raise StorageError(f"The database has changed while it was restored from {backup.path}.")
    source = open_engine(sqlite_address(staged))
    try:
        _bring_up_to_date(source, backup.checkpoints)
        if unfinished.settings.database_url is not None:
            _fill(source, unfinished.settings.database_url)
    finally:
        source.dispose()
    if unfinished.settings.database_url is not None:
        for path in unfinished.path.glob("manyhands.db*"):
            path.unlink()


def _bring_up_to_date(staged: Engine, there: list[str]) -> None:
    """Give it this version's tables, and forget the checkpoints that are not in the backup."""
    try:
        migrate(staged)
        database = Database(staged)
        gone = [row.step for row in checkpoints(database) if checkpoint_name(row.step) not in there]
        forget_checkpoints(database, gone)
    except DBAPIError as error:
        raise StorageError(f"The database cannot be written ({error.orig}): is the disk full?") from error


def _fill(source: Engine, address: str) -> None:
    """Copy all rows in one transaction, which is undone if they do not arrive as they were sent."""
    engine = open_engine(address, create=True)
    try:
        with source.connect() as reading:
            expected = contents(reading)
            if _is_free(engine, expected):
                migrate(engine)
                with engine.begin() as writing:
                    copy_rows(reading, writing)
                    if contents(writing) != expected:
                        raise StorageError(
                            "The database that `database_url` names does not keep what is written to it."
                        )
    except DBAPIError as error:
        raise StorageError(
            f"The database that `database_url` names does not take the run: {own_words(error)}."
        ) from error
    finally:
        engine.dispose()


def _is_free(engine: Engine, expected: dict[str, TableContent]) -> bool:
    """Return whether the database is empty; false if it holds exactly these rows, which an earlier attempt left.

    Raises `ConfigError` for any other database, which is not touched: it may be an older version's.
    """
    with engine.connect() as connection:
        if is_empty(connection):
            return True
        with suppress(DBAPIError):  # tables that lack something, for instance
            if contents(connection) == expected:
                return False
    raise ConfigError("The database that `database_url` names holds a run already: name an empty one.")
