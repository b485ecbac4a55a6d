"""Rehearsals of a restore: all is compared, and nothing of it stays, however it ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from auth.errors import StorageError
from coordinator.backup import rehearsal as rehearsing
from coordinator.backup.backup import Backup, back_up
from coordinator.backup.database import sqlite_address
from coordinator.backup.rehearsal import LOCK, SCRATCH, rehearse, scratch_folder
from coordinator.context.open_run import open_run
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import open_engine
from peer.config.run import Run, RunConfig
from tests.support.operator_commands import call
from tests.support.receipts import key_of
from tests.support.small_disks import small_disk
from tests.support.stores import Kind, database_address, put_tables
from tests.support.waiting import wait_until

NOW = 1_800_000_000.0
HOLD = """
import sys
from pathlib import Path
from coordinator.backup.rehearsal import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "big").write_text("x")
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def backup(tmp_path: Path, store_kind: Kind) -> Iterator[Backup]:
    """Of a run with a member and a device, in a folder of its own."""
    with database_address(tmp_path, store_kind) as address:
        settings = Settings(database_url=None if store_kind == "sqlite" else address)
        run = RunDirectory.create(tmp_path / "run", RunConfig(run=Run(name="demo")), settings, prepare=put_tables)
        with open_run(run.path) as opened:
            opened.membership.join(key_of("Ada").public_key, opened.membership.invite("Ada")[0])
        (tmp_path / "backups").mkdir()
        yield back_up(run, tmp_path / "backups" / "monday", NOW)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def schemas(backup: Backup) -> list[str]:
    """Those of the run's database on its server, which a rehearsal must not leave behind."""
    settings = Settings.from_yaml(backup.path / "run" / "settings.yaml")
    if settings.database_url is None:
        return []
    engine = open_engine(settings.database_url)
    with engine.connect() as connection:
        found = connection.scalars(text("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%rehearsal%'")).all()
    engine.dispose()
    return list(found)


def test_everything_is_compared_and_nothing_stays(backup: Backup, store_kind: Kind) -> None:
    """Neither beside the backup nor in the run's database; the command says what it compared, and so does its JSON."""
    found = rehearse(backup.path)
    assert found.tables["members"] == (1, 1)
    assert found.tables.keys() == backup.manifest.tables.keys()
    assert found.same_version
    assert found.on_server == (store_kind == "postgresql")
    said = call("backup", backup.path, "--verify").stdout
    assert "members" in said
    assert f"{len(backup.manifest.files)} files: the digest of each is the backup's." in said
    assert ("PostgreSQL took all rows" in said) == (store_kind == "postgresql")
    assert json.loads(call("backup", backup.path, "--verify", "--json").stdout)["verified"]["tables"]["devices"] == 1
    assert left_in(backup.path.parent) == ["monday"]
    assert schemas(backup) == []


def test_a_backup_can_be_made_and_rehearsed_at_once(tmp_path: Path) -> None:
    """By one command, as a timer calls it."""
    run = RunDirectory.create(tmp_path / "run", RunConfig(run=Run(name="demo")), Settings(), prepare=put_tables)
    said = call("backup", run.path, tmp_path / "backups" / "monday", "--verify").stdout
    assert "keep it where only you can read it" in said
    assert "Nothing of the trial is left." in said
    assert left_in(tmp_path / "backups") == ["monday"]


@pytest.mark.parametrize("store_kind", ["sqlite"], indirect=True)
def test_a_restore_that_loses_something_is_told(backup: Backup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row, a file's byte, the contents of a row: each is named, and nothing stays."""

    def restore_and(damage: object) -> None:
        def act(*arguments: Path) -> RunDirectory:
            made = restored(*arguments)
            damage(made)  # type: ignore[operator]
            return made

        monkeypatch.setattr(rehearsing, "restore", act)

    def change(statement: str, run: RunDirectory) -> None:
        engine = open_engine(sqlite_address(run.path / "manyhands.db"))
        with engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()

    restored = rehearsing.restore
    for damage, reason in (
        (lambda run: change("DELETE FROM invites", run), "`invites` came back with 0 rows instead of 1"),
        (lambda run: change("UPDATE members SET name = 'Eve'", run), "`members` came back with another content"),
        (lambda run: (run.path / "run.yaml").write_text("x"), "'run.yaml' came back with another content"),
    ):
        restore_and(damage)
        with pytest.raises(StorageError, match=reason):
            rehearse(backup.path)
        assert left_in(backup.path.parent) == ["monday"]


def test_what_a_killed_rehearsal_has_made_is_removed(tmp_path: Path) -> None:
    """By a process that outlives it; and where the machine went down, by the next rehearsal."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().decode().strip())
        assert (folder / "big").exists()
        with scratch_folder(tmp_path):
            assert (folder / "big").exists()  # another's that goes on is let alone
        child.send_signal(signal.SIGKILL)
    wait_until("the scratch folder is gone", lambda: left_in(tmp_path) == [])
    left = tmp_path / f"{SCRATCH}left"
    left.mkdir()
    (left / LOCK).touch()
    with scratch_folder(tmp_path) as folder:
        assert left_in(tmp_path) == [folder.name]
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("store_kind", ["sqlite"], indirect=True)
def test_a_full_disk_is_one_sentence_and_nothing_stays(
    backup: Backup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether that is known before or comes in the middle."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with small_disk(scratch, 64 << 10):
        with pytest.raises(StorageError, match="MB are free: name a folder with more room by `--scratch`"):
            rehearse(backup.path, scratch)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
        with pytest.raises(StorageError, match="No space left"):
            rehearse(backup.path, scratch)
        assert left_in(scratch) == []
    with pytest.raises(StorageError, match="name another folder by `--scratch`"):
        rehearse(backup.path, tmp_path / "nowhere")
