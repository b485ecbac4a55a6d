"""The manifest of a backup: its run, file digests, and counts that reveal data loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from auth.errors import ConfigError, StorageError
from coordinator.checkpoints.manifest import FileEntry

MANIFEST, RUN, DATABASE = "backup.json", "run", "database.db"
CHECKPOINTS = "checkpoints"


def _inside(name: str) -> str:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError("this path leads out of the backup")
    return name


class BackupManifest(BaseModel):
    """The manifest of a backup: its run, the digest of each file, and counts of the run's data."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format_version: Literal[1]
    run: str
    created_at: float  # Unix time in seconds
    software_version: str
    files: dict[Annotated[str, AfterValidator(_inside)], FileEntry]  # path within the folder run/ -> size and digest
    database: FileEntry
    tables: dict[str, int]  # table -> number of rows
    figures: dict[str, int]  # counts that reveal data loss: `coordinator.backup.shrinkage`


class Backup(BaseModel):
    """A backup folder and its manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: Path
    manifest: BackupManifest

    @property
    def size_bytes(self) -> int:
        """The total size of all files except the manifest."""
        return sum(entry.size_bytes for entry in (self.manifest.database, *self.manifest.files.values()))

    @property
    def rows(self) -> int:
        """The total number of rows in all tables."""
        return sum(self.manifest.tables.values())

    @property
    def checkpoints(self) -> list[str]:
        """The names of the checkpoint folders in the backup, in order."""
        paths = [Path(name).parts for name in self.manifest.files]
        return sorted({parts[1] for parts in paths if parts[0] == CHECKPOINTS and len(parts) > 2})


def read_backup(path: Path) -> Backup:
    """Read a backup's manifest; raises `ConfigError` if missing, `StorageError` if damaged."""
    try:
        return Backup(path=path, manifest=BackupManifest.model_validate_json((path / MANIFEST).read_bytes()))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} holds no backup: there is no {MANIFEST} in it.") from error
    except OSError as error:
        raise StorageError(f"Cannot read {path / MANIFEST} ({error.strerror}).") from error
    except ValidationError as error:
        raise StorageError(f"{path / MANIFEST} is damaged, or of another version of manyhands.") from error
