"""The manifest of a backup: its run, the digests of its files and tables, and the figures that tell a shrunken run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from auth.errors import ConfigError, StorageError
from coordinator.backup.database import TableContent
from coordinator.checkpoints.manifest import FileEntry

MANIFEST, RUN, DATABASE = "backup.json", "run", "database.db"
CHECKPOINTS = "checkpoints"


class Holdings(BaseModel):
    """The figures by which a run is compared with an earlier backup of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    era: int  # steps, receipts and samples shrink when a new one begins
    step: int  # the newest that the database knows
    members: int
    devices: int
    reports: int
    receipts: int
    samples: int  # counted
    checkpoints: int  # on disk, also where the backup leaves them out
    checkpoint_step: int  # the newest of them that no return to an earlier one has undone


class BackupManifest(BaseModel):
    """The manifest of a backup: its run, its origin, and a digest of each file and table."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format_version: Literal[1]
    run: str
    created_at: float  # Unix seconds
    software_version: str
    database_from: str  # sqlite or postgresql
    files: dict[str, FileEntry]  # by path, below run/
    database: FileEntry
    tables: dict[str, TableContent]
    holdings: Holdings | None = None  # older versions wrote none


def read_manifest(path: Path) -> BackupManifest:
    """Read the manifest of the backup in this folder; raises `ConfigError` or `StorageError`."""
    try:
        return BackupManifest.model_validate(json.loads((path / MANIFEST).read_bytes()))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} holds no backup: there is no {MANIFEST} in it.") from error
    except OSError as error:
        raise StorageError(f"Cannot read {path / MANIFEST} ({error.strerror}).") from error
    except (ValueError, ValidationError, RecursionError) as error:
        raise StorageError(f"{path / MANIFEST} is damaged, or of a newer version of manyhands.") from error
