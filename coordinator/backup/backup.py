"""Backup of a run, even while the coordinator is running, and verification of a backup.

  backup.json    manifest with the digest of each file; written last, so a partial backup is invalid
  run/           run's directory: settings, keys, keeper's credentials, tokenizer, validation set, checkpoints
  database.db    copy of the database, always as a SQLite file

A backup contains the authority's key, which can admit members, so files have mode 0600 and folders
0700. The database is copied first, as a snapshot, then the files. Checkpoints deleted meanwhile are
omitted, and checkpoints written meanwhile may be included; the keeper can start in both cases.
`coordinator.backup.restore` restores a backup.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from auth.errors import ConfigError, StorageError
from auth.files import new_directory, sync, write_private
from coordinator.backup.database import count_rows, save_as_file
from coordinator.backup.manifest import CHECKPOINTS, DATABASE, MANIFEST, RUN, Backup, BackupManifest, read_backup
from coordinator.backup.shrinkage import figures_of, last_backup, remember_backup, require_no_losses
from coordinator.checkpoints.manifest import CHUNK_BYTES, FileEntry, file_entry, matches, verify
from coordinator.run.database_owner import open_database
from coordinator.run.directory import RunDirectory
from peer.reporting.event_log import FOLDER as EVENTS
from peer.runtime.version import software_version

DATABASE_FILES = ("manyhands.db", "manyhands.db-wal", "manyhands.db-shm", "manyhands.db-journal")


def back_up(
    directory: RunDirectory, target: Path, now: float, checkpoints: bool = True, confirmed: bool = False
) -> Backup:
    """Back up a run to a new folder `target`, atomically, even while the coordinator is running.

    Raises `ConfigError` if `target` exists or is inside the run. Raises `ShrunkenRunError` if the
    run has far less data than its last backup or checkpoints imply, unless `confirmed`.
    """
    target = target.absolute()
    if directory.path.resolve() in [target.resolve(), *target.resolve().parents]:
        raise ConfigError(f"{target} lies in the run's own directory: back it up to another place.")
    with new_directory(target, 0o700, "name a folder that is not there yet") as aside:
        copy = aside / DATABASE
        with open_database(directory) as database:
            save_as_file(database.engine, copy)
        tables, figures = count_rows(copy), figures_of(copy, directory.checkpoints_dir)
        if not confirmed:
            require_no_losses(directory, tables | figures, last_backup(directory, target), now)
        manifest = BackupManifest(
            format_version=1,
            run=directory.config.run.name,
            created_at=now,
            software_version=software_version(),
            files=_copy_run(directory.path, aside / RUN, checkpoints),
            database=file_entry(copy),
            tables=tables,
            figures=figures,
        )
        write_private(aside / MANIFEST, manifest.model_dump_json(indent=1).encode())
        open_backup(aside)
        seal(aside)
    sync(target.parent)
    backup = Backup(path=target, manifest=manifest)
    remember_backup(directory, backup)
    return backup


def open_backup(path: Path) -> Backup:
    """Open and verify a backup; raises `ConfigError` if missing, `StorageError` if damaged."""
    backup = read_backup(path)
    require_files(path / RUN, backup.manifest.files)
    require_files(path, {DATABASE: backup.manifest.database})
    return backup


def require_files(folder: Path, entries: Mapping[str, FileEntry]) -> None:
    """Raise `StorageError` unless the folder has a matching regular file for each entry."""
    for name, entry in entries.items():
        try:
            whole = matches(folder / name, entry)
        except OSError:
            whole = False
        if not whole:
            raise StorageError(f"{folder} is not what the backup holds: {name!r:.200} is missing or damaged.")


def _copy_run(run: Path, target: Path, checkpoints: bool) -> dict[str, FileEntry]:
    """Copy the run's files, except logs and checkpoints deleted meanwhile; return their entries."""
    entries: dict[str, FileEntry] = {}
    for name in _files_of(run, checkpoints):
        try:
            entries[str(name)] = copy_file(run / name, target / name)
        except FileNotFoundError:
            if name.parts[0] not in (CHECKPOINTS, EVENTS):
                raise
    for folder in filter(Path.is_dir, sorted((target / CHECKPOINTS).glob("step-*"))):
        try:
            verify(folder)
        except StorageError:
            shutil.rmtree(folder)
            entries = {name: entry for name, entry in entries.items() if Path(name).parts[:2] != folder.parts[-2:]}
    return entries


def _files_of(run: Path, checkpoints: bool) -> Iterator[Path]:
    """Yield the sorted paths of the files to copy, relative to the run's directory; follow links.

    The database and incomplete files, whose names begin with a dot, are excluded.
    """
    left_out = set() if checkpoints else {CHECKPOINTS}
    for folder, folders, names in os.walk(run, followlinks=True):
        place = Path(folder).relative_to(run)
        folders[:] = sorted(name for name in folders if name[0] != "." and str(place / name) not in left_out)
        for name in sorted(names):
            if name[0] != "." and str(place / name) not in DATABASE_FILES and Path(folder, name).is_file():
                yield place / name


def copy_file(source: Path, target: Path) -> FileEntry:
    """Copy a file to a new file; return the manifest entry of the copied bytes."""
    digest, size_bytes = hashlib.sha256(), 0
    with source.open("rb") as reader:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as writer:
            while chunk := reader.read(CHUNK_BYTES):
                writer.write(chunk)
                digest.update(chunk)
                size_bytes += len(chunk)
    return FileEntry(size_bytes=size_bytes, sha256=digest.hexdigest())


def seal(folder: Path) -> None:
    """Make a folder and its contents private, and sync them to disk."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o700 if path.is_dir() else 0o600)
        sync(path)
