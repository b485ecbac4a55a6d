"""Backup of a run while it is served, and verification of a backup.

    backup.json    the manifest, with a digest of each file and table; written last, so a partial backup is not valid
    run/           the run's directory: settings, keys, the keeper's credentials, tokenizer, validation set, checkpoints
    database.db    the database, as a SQLite file, whichever kind it is from

A backup holds the authority's key: anyone who has the key decides who is a member. All files have mode 0600, folders
0700. The database is copied first, as of one moment, and the files follow. A checkpoint that is removed meanwhile is
left out; one that is written meanwhile may be included. The keeper can start from either, as after any crash.
`coordinator.backup.restore` restores a backup.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auth.errors import ConfigError, StorageError
from auth.files import make_private_directory, new_directory, write_private
from coordinator.backup.database import file_contents, save_as_file
from coordinator.backup.manifest import CHECKPOINTS, DATABASE, MANIFEST, RUN, BackupManifest, read_manifest
from coordinator.backup.shrinkage import holdings_of, last_backup, remember_backup, require_no_losses
from coordinator.checkpoints.manifest import CHUNK_BYTES, FileEntry, file_entry, verify
from coordinator.run.database_owner import open_database
from coordinator.run.directory import RunDirectory
from peer.reporting.event_log import FOLDER as EVENTS
from peer.runtime.version import software_version

DATABASE_FILES = ("manyhands.db", "manyhands.db-wal", "manyhands.db-shm", "manyhands.db-journal")


@dataclass(frozen=True)
class Backup:
    """A backup that was verified."""

    path: Path
    manifest: BackupManifest

    @property
    def size_bytes(self) -> int:
        """The size of all files but the manifest."""
        files = self.manifest.files.values()
        return self.manifest.database.size_bytes + sum(entry.size_bytes for entry in files)

    @property
    def checkpoints(self) -> list[str]:
        """The names of their folders, in order."""
        paths = [Path(name).parts for name in self.manifest.files]
        return sorted({parts[1] for parts in paths if parts[0] == CHECKPOINTS and len(parts) > 2})


def back_up(
    directory: RunDirectory, target: Path, now: float, checkpoints: bool = True, confirmed: bool = False
) -> Backup:
    """Back a run up to `target`, a new folder, whole and verified or not at all; the run may be served meanwhile.

    Raises `ConfigError` where there is something already, or inside the run itself; `ShrunkenRunError` where the run
    holds far less than its last backup or its checkpoints imply, unless that is confirmed.
    """
    target = target.absolute()
    if directory.path.resolve() in [target.resolve(), *target.resolve().parents]:
        raise ConfigError(f"{target} lies in the run's own directory: back it up to another place.")
    with new_directory(target, 0o700, "name a folder that is not there yet") as aside:
        database_from = _save_database(directory, aside / DATABASE)
        holdings = holdings_of(aside / DATABASE, directory.checkpoints_dir)
        if not confirmed:
            require_no_losses(directory, holdings, last_backup(directory, target), now)
        files = _copy_files(directory.path, aside / RUN, checkpoints)
        manifest = BackupManifest(
            format_version=1,
            run=directory.config.run.name,
            created_at=now,
            software_version=software_version(),
            database_from=database_from,
            files=files,
            database=file_entry(aside / DATABASE),
            tables=file_contents(aside / DATABASE),
            holdings=holdings,
        )
        write_private(aside / MANIFEST, manifest.model_dump_json(indent=1).encode())
        open_backup(aside)
        sync_folders(aside)
    sync_folder(target.parent)
    remember_backup(directory, target, manifest)
    return Backup(target, manifest)


def open_backup(path: Path) -> Backup:
    """A backup of which every byte was compared with its manifest; raises `ConfigError` or `StorageError`."""
    manifest = read_manifest(path)
    for name, entry in manifest.files.items():
        check_file(path / RUN, name, entry)
    check_file(path, DATABASE, manifest.database)
    if file_contents(path / DATABASE) != manifest.tables:
        raise StorageError(f"{path} is no whole backup: its database holds something else than it should.")
    return Backup(path, manifest)


def _save_database(directory: RunDirectory, target: Path) -> str:
    """Returns of which kind it was."""
    with open_database(directory) as database:
        save_as_file(database.engine, target)
        return database.engine.dialect.name


def _copy_files(run: Path, target: Path, checkpoints: bool) -> dict[str, FileEntry]:
    """Copy all that is to be copied; checkpoints that are removed meanwhile are left out whole, as are rotated logs."""
    entries: dict[str, FileEntry] = {}
    for name in files_of(run, checkpoints):
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


def files_of(run: Path, checkpoints: bool) -> Iterator[Path]:
    """The files to copy, relative to the run's directory, in order: all but the database and unfinished files.

    Files that are being written have names with a dot in front. Links stand for what they lead to.
    """
    for folder, folders, names in os.walk(run, followlinks=True):
        at_top = Path(folder) == run
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if at_top and not checkpoints and "checkpoints" in folders:
            folders.remove("checkpoints")
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and not (at_top and name in DATABASE_FILES) and path.is_file():
                yield path.relative_to(run)


def copy_file(source: Path, target: Path) -> FileEntry:
    """Copy to a new file of mode 0600, on the disk when this returns; what was read is the entry."""
    _make_folders(target.parent)
    digest, size_bytes = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with source.open("rb") as reader, os.fdopen(descriptor, "wb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            writer.write(chunk)
            digest.update(chunk)
            size_bytes += len(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return FileEntry(size_bytes=size_bytes, sha256=digest.hexdigest())


def check_file(folder: Path, name: str, entry: FileEntry) -> None:
    """Raise `StorageError` unless a plain file below the folder is what the entry says."""
    path = folder / name
    try:
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts
        right = inside and stat.S_ISREG(path.lstat().st_mode) and file_entry(path) == entry
    except OSError:
        right = False
    if not right:
        raise StorageError(f"{folder} is no whole backup: {name!r:.200} is missing or damaged.")


def sync_folders(top: Path) -> None:
    """Have the names of all files below on the disk, too."""
    for folder, _, _ in os.walk(top):
        sync_folder(Path(folder))


def sync_folder(folder: Path) -> None:
    """Have the names of the files in it on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(folder: Path) -> None:
    """With those above it, each for its owner alone."""
    if not folder.exists():
        _make_folders(folder.parent)
        make_private_directory(folder)
