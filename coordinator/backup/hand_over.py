"""Handing a run over to another operator and host: the whole run in one encrypted file, and a run made from that file.

Built on `coordinator.backup.backup` and `coordinator.backup.restore`. Keys and certificate are included, so join links,
members, tokens and receipts stay valid; only the host in the join link must lead to the new machine. A file in the old
directory marks the run as handed over, and it is not served there again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from auth.errors import ConfigError, StorageError
from coordinator.backup.backup import RUN, Backup, back_up
from coordinator.backup.handed_over import mark_handed_over, require_not_handed_over
from coordinator.backup.restore import SETTINGS, restore
from coordinator.backup.sealed import seal, unseal
from coordinator.ledger.presence import read_swarm_status
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import Sessions

SILENT_S = 15.0  # a keeper that is there has written within this time
LEAST_PASSPHRASE = 12  # characters


def hand_over(directory: RunDirectory, sessions: Sessions, archive: Path, passphrase: str, now: float) -> Backup:
    """Write the run to `archive`, whole or not at all, and serve it here no more.

    Raises `ConfigError` while it is served: what it did afterwards would be lost.
    """
    require_strong(passphrase)
    require_not_handed_over(directory)
    status = read_swarm_status(sessions)
    if status is not None and now - status.updated_at < SILENT_S:
        raise ConfigError("The run is being served: stop it first, so that all that it has done goes along.")
    archive = archive.absolute()
    if directory.path.resolve() in archive.resolve().parents:
        raise ConfigError(f"{archive} lies in the run's own directory: write it to another place.")
    with _scratch(archive.parent) as scratch:
        made = back_up(directory, scratch / "backup", now)
        seal(scratch / "backup", archive, passphrase)
    mark_handed_over(directory, archive, now)
    return made


def take_over(
    archive: Path, target: Path, passphrase: str, settings_file: Path | None = None, host: str | None = None
) -> RunDirectory:
    """Make the run of an archive in `target`, whole or not at all.

    `settings_file` replaces its settings.yaml. Else these stay, but for `host`, where peers connect to from now on,
    and for the database, which is SQLite in the directory: the one before was its operator's.
    """
    if settings_file is not None and host is not None:
        raise ConfigError("`--host` changes the run's own settings; with `--settings` name the host in that file.")
    target = target.absolute()
    with _scratch(target.parent) as scratch:
        unseal(archive, passphrase, scratch / "backup")
        chosen = settings_file or _own_settings(scratch, host)
        return restore(scratch / "backup", target, chosen)


def require_strong(passphrase: str) -> str:
    """The passphrase; raises `ConfigError` for one that is soon guessed: whoever has the archive may try for years."""
    if len(passphrase) < LEAST_PASSPHRASE:
        raise ConfigError(f"The passphrase has {len(passphrase)} characters: take {LEAST_PASSPHRASE} or more.")
    return passphrase


def _own_settings(scratch: Path, host: str | None) -> Path:
    settings = Settings.from_yaml(scratch / "backup" / RUN / SETTINGS).model_dump(mode="json")
    settings |= {"database_url": None} | ({} if host is None else {"public_host": host})
    chosen = scratch / SETTINGS
    chosen.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return chosen


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder for its owner alone, on the disk where the result will lie; gone with the block."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".manyhands-", dir=parent) as name:
            yield Path(name)
    except OSError as error:
        raise StorageError(f"Cannot write to {parent} ({error.strerror}).") from error
