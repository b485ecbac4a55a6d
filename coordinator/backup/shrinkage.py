"""Comparison of a run with its last backup and with its own checkpoints, before a new backup is made.

A run that has lost its database or its checkpoints could be backed up like any other, and in time only such backups
would be left. So `back_up` asks here first. The last backup is known by a file in the run's directory, and by the
manifests beside the new one: the directory itself may be what was lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from auth.errors import ManyhandsError, ShrunkenRunError, StorageError
from auth.files import write_private
from coordinator.backup.database import read_only
from coordinator.backup.manifest import MANIFEST, BackupManifest, Holdings, read_manifest
from coordinator.checkpoints.manifest import Manifest, verify
from coordinator.run.directory import RunDirectory
from peer.runtime.console import format_age

LAST_BACKUP = "last-backup.json"  # in the run's directory
FAR_LESS = 0.5  # of the last backup's figure
_LASTING = ("members", "devices", "reports")  # rows that no command deletes
_OF_AN_ERA = ("step", "receipts", "samples")
_FIGURES = {
    "era": "SELECT max(era) FROM eras",
    "members": "SELECT count(*) FROM members",
    "devices": "SELECT count(*) FROM devices",
    "reports": "SELECT count(*) FROM reports",
    "receipts": "SELECT count(*) FROM receipts",
    "samples": "SELECT sum(counted) FROM daily_shares",
    "step": "SELECT max(step) FROM (SELECT step FROM steps UNION ALL SELECT step FROM swarm_status "
    "UNION ALL SELECT step FROM checkpoints)",
}


class EarlierBackup(BaseModel):
    """A backup that was made before, with what it holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: str
    run: str
    created_at: float  # Unix seconds
    holdings: Holdings


def holdings_of(database: Path, checkpoints: Path) -> Holdings:
    """Read a run's figures from a SQLite file with this version's tables, and from the folder of its checkpoints."""
    with closing(read_only(database)) as connection:
        found = {name: connection.execute(query).fetchone()[0] or 0 for name, query in _FIGURES.items()}
        steps = [_counting(connection, manifest) for manifest in _manifests(checkpoints)]
    return Holdings(**found, checkpoints=len(steps), checkpoint_step=max(steps, default=0))


def losses(now: Holdings, before: Holdings) -> list[str]:
    """The figures that are far below those of an earlier backup, in words."""
    compared = _LASTING + (_OF_AN_ERA if now.era == before.era else ())
    found = [
        f"{name} {getattr(now, name):,} instead of {getattr(before, name):,}"
        for name in compared
        if getattr(now, name) < FAR_LESS * getattr(before, name)
    ]
    return [*found, *(["no checkpoints"] if before.checkpoints and not now.checkpoints else [])]


def require_no_losses(directory: RunDirectory, now: Holdings, last: EarlierBackup | None, at: float) -> None:
    """Raise `ShrunkenRunError` where a run holds far less than its last backup, or than its checkpoints imply."""
    if now.step < FAR_LESS * now.checkpoint_step:
        raise ShrunkenRunError(
            f"The database of the run in {directory.path} knows {now.step:,} steps, and the newest checkpoint beside "
            f"it is of step {now.checkpoint_step:,}: the database was lost, or is another one."
        )
    if last is not None and (found := losses(now, last.holdings)):
        raise ShrunkenRunError(
            f"The run in {directory.path} holds far less than its backup {last.path} of "
            f"{format_age(last.created_at, at)} ({', '.join(found)}): look whether its database is the right one and "
            "the disk of its checkpoints is there."
        )


def last_backup(directory: RunDirectory, target: Path) -> EarlierBackup | None:
    """The newest backup of this run that the run's directory or a folder beside `target` tells of."""
    found = []
    with suppress(OSError, ValidationError):  # none yet, or a newer version's
        found.append(EarlierBackup.model_validate_json((directory.path / LAST_BACKUP).read_bytes()))
    for path in target.parent.glob(f"[!.]*/{MANIFEST}"):  # a dot: unfinished
        with suppress(ManyhandsError):  # damaged: it tells nothing
            found.append(_told_by(path.parent, read_manifest(path.parent)))
    own = [backup for backup in found if backup.run == directory.config.run.name]
    return max(own, key=lambda backup: backup.created_at, default=None)


def remember_backup(directory: RunDirectory, path: Path, manifest: BackupManifest) -> None:
    """Note a backup in the run's directory; a directory that takes no file is left alone, since the backup is made."""
    with suppress(StorageError):
        content = _told_by(path, manifest).model_dump_json()
        write_private(directory.path / LAST_BACKUP, content.encode())


def _told_by(path: Path, manifest: BackupManifest) -> EarlierBackup:
    """What a manifest tells; one of an older version has rows of tables, and of no era that could be compared."""
    rows = {name: manifest.tables[name].rows if name in manifest.tables else 0 for name in _LASTING}
    older = Holdings(era=-1, step=0, receipts=0, samples=0, checkpoints=0, checkpoint_step=0, **rows)
    return EarlierBackup(
        path=str(path), run=manifest.run, created_at=manifest.created_at, holdings=manifest.holdings or older
    )


def _manifests(checkpoints: Path) -> Iterator[Manifest]:
    """Those of the checkpoints in this folder, without a look at their files."""
    for path in checkpoints.glob("step-*"):
        with suppress(StorageError):  # damaged: who resumes passes it over
            yield verify(path, files=()).manifest


def _counting(connection: sqlite3.Connection, manifest: Manifest) -> int:
    """A checkpoint's step, or where a later era began if that undid it; see `coordinator.store.eras`."""
    [last] = connection.execute("SELECT min(after_step) FROM eras WHERE era > ?", (manifest.era,)).fetchone()
    return manifest.step if last is None else min(manifest.step, last)
