"""Detection of data loss before a new backup, by comparison with the last backup and the checkpoints.

Without this check, backups of a run that has lost its database or checkpoints would eventually
replace all good backups. The last backup is found through a file in the run's directory or, in case
the directory was lost, among the manifests beside the new backup.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from auth.errors import ManyhandsError, ShrunkenRunError, StorageError
from auth.files import write_private
from coordinator.backup.database import read_only
from coordinator.backup.manifest import MANIFEST, Backup, read_backup
from coordinator.checkpoints.manifest import verify
from coordinator.run.directory import RunDirectory
from peer.runtime.console import format_age

LAST_BACKUP = "last-backup.json"  # file in the run's directory that names the last backup
FAR_LESS = 0.5  # a figure below this fraction of the last backup's figure indicates lost data
_LASTING = ("members", "devices", "reports")  # tables whose rows no command deletes
_OF_AN_ERA = ("step", "receipts", "samples")  # figures that may decrease when a new era begins
_FIGURES = {  # figures other than the row counts of tables
    "era": "SELECT max(era) FROM eras",
    "samples": "SELECT sum(counted) FROM daily_shares",
    "step": "SELECT max(step) FROM (SELECT step FROM steps UNION ALL SELECT step FROM swarm_status "
    "UNION ALL SELECT step FROM checkpoints)",
}


def figures_of(database: Path, checkpoints: Path) -> dict[str, int]:
    """Read a run's figures from its migrated SQLite file and its checkpoint folder."""
    with read_only(database) as connection:
        found = {name: connection.execute(query).fetchone()[0] or 0 for name, query in _FIGURES.items()}
        steps = list(_checkpoint_steps(connection, checkpoints))
    return {**found, "checkpoints on disk": len(steps), "checkpoint step": max(steps, default=0)}


def require_no_losses(directory: RunDirectory, now: Mapping[str, int], last: Backup | None, at: float) -> None:
    """Raise `ShrunkenRunError` if a run has far less data than its last backup or checkpoints.

    `now` contains the run's figures and the row count of each table.
    """
    if now["step"] < FAR_LESS * now["checkpoint step"]:
        raise ShrunkenRunError(
            f"The database of the run in {directory.path} knows {now['step']:,} steps, and the newest checkpoint "
            f"beside it is of step {now['checkpoint step']:,}: the database was lost, or is another one."
        )
    if last is not None and (found := _losses(now, last.manifest.tables | last.manifest.figures)):
        raise ShrunkenRunError(
            f"The run in {directory.path} holds far less than its backup {last.path} of "
            f"{format_age(last.manifest.created_at, at)} ({', '.join(found)}): look whether its database is the right "
            "one and the disk of its checkpoints is there."
        )


def _losses(now: Mapping[str, int], before: Mapping[str, int]) -> list[str]:
    """Describe the figures that are far below those of an earlier backup."""
    compared = _LASTING + (_OF_AN_ERA if now["era"] == before.get("era") else ())
    found = [
        f"{name} {now[name]:,} instead of {before[name]:,}"
        for name in compared
        if now[name] < FAR_LESS * before.get(name, 0)
    ]
    lost_disk = before.get("checkpoints on disk") and not now["checkpoints on disk"]
    return [*found, *(["no checkpoints"] if lost_disk else [])]


def last_backup(directory: RunDirectory, target: Path) -> Backup | None:
    """Return the newest backup recorded in the run's directory or found beside `target`, if any."""
    found = []
    with suppress(OSError, ValidationError):  # no record, or one that another version wrote
        found.append(Backup.model_validate_json((directory.path / LAST_BACKUP).read_bytes()))
    for path in target.parent.glob(f"[!.]*/{MANIFEST}"):  # a leading dot marks an unfinished backup
        with suppress(ManyhandsError):  # damaged backups are ignored
            found.append(read_backup(path.parent))
    own = [backup for backup in found if backup.manifest.run == directory.config.run.name]
    return max(own, key=lambda backup: backup.manifest.created_at, default=None)


def remember_backup(directory: RunDirectory, backup: Backup) -> None:
    """Record a backup in the run's directory; ignore failures, because the backup is complete."""
    with suppress(StorageError):
        write_private(directory.path / LAST_BACKUP, backup.model_dump_json().encode())


def _checkpoint_steps(connection: sqlite3.Connection, folder: Path) -> Iterator[int]:
    """Yield each checkpoint's step or, if a rewind undid the step, the last step that was kept."""
    for path in folder.glob("step-*"):
        with suppress(StorageError):  # skip a damaged checkpoint, as a resuming keeper does
            manifest = verify(path, files=()).manifest  # reads only the manifest
            [last] = connection.execute("SELECT min(after_step) FROM eras WHERE era > ?", (manifest.era,)).fetchone()
            yield manifest.step if last is None else min(manifest.step, last)
