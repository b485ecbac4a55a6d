"""Checks of a backup: it is restored, all is compared, and nothing of it stays."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from auth.errors import ConfigError, StorageError
from coordinator.backup.backup import back_up
from coordinator.backup.manifest import Backup
from coordinator.backup.restore import check
from coordinator.context.open_run import open_run
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from peer.config.run import Run, RunConfig
from tests.support.operator_commands import call
from tests.support.receipts import key_of
from tests.support.small_disks import small_disk
from tests.support.stores import Kind, database_address, put_tables
from tests.support.waiting import PATIENCE_S

NOW = 1_800_000_000.0


@pytest.fixture
def backup(tmp_path: Path, store_kind: Kind) -> Iterator[Backup]:
    """Of a run with a member and a device, in a folder of its own."""
    with database_address(tmp_path, store_kind) as address:
        settings = Settings(database_url=None if store_kind == "sqlite" else address)
        run = RunDirectory.create(tmp_path / "run", RunConfig(run=Run(name="demo")), settings, prepare=put_tables)
        with open_run(run.path) as opened:
            opened.membership.join(key_of("Ada").public_key, opened.membership.invite("Ada")[0])
        yield back_up(run, tmp_path / "backups" / "monday", NOW)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_is_compared_and_nothing_stays(backup: Backup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own database is not touched; the command says what came back, and so does its JSON."""
    monkeypatch.chdir(backup.path.parent)
    said = call("restore", "monday", "--check").stdout.replace("\n", " ")
    assert f"{backup.path} restores to the run `demo`" in said
    assert f"All {len(backup.manifest.files)} files and {len(backup.manifest.tables)} tables" in said
    told = json.loads(call("restore", backup.path, "--check", "--json").stdout)
    assert (told["tables"]["devices"], told["verified"]) == (1, True)
    assert left_in(backup.path.parent) == ["monday"]


def test_a_backup_can_be_made_and_checked_at_once(tmp_path: Path) -> None:
    """By one command, as a timer calls it."""
    run = RunDirectory.create(tmp_path / "run", RunConfig(run=Run(name="demo")), Settings(), prepare=put_tables)
    said = call("backup", run.path, tmp_path / "backups" / "monday", "--verify").stdout
    assert "keep it where only you can read it" in said
    assert "Nothing of the check is left." in said
    told = json.loads(call("backup", run.path, tmp_path / "backups" / "tuesday", "--verify", "--json").stdout)
    assert told["verified"]
    assert left_in(tmp_path / "backups") == ["monday", "tuesday"]


@pytest.mark.parametrize("store_kind", ["sqlite"], indirect=True)
def test_a_backup_that_does_not_restore_is_told(backup: Backup) -> None:
    """A byte that has changed, a row that is not there: each is named, and nothing stays."""
    manifest = json.loads((backup.path / "backup.json").read_text())
    manifest["tables"]["invites"] += 1
    (backup.path / "backup.json").write_text(json.dumps(manifest))
    with pytest.raises(StorageError, match="`invites` comes back with 1 rows instead of 2"):
        check(backup.path)
    (backup.path / "run" / "run.yaml").write_text("x")
    with pytest.raises(StorageError, match=r"'run\.yaml' is missing or damaged"):
        check(backup.path)
    assert left_in(backup.path.parent) == ["monday"]


@pytest.mark.parametrize("store_kind", ["sqlite"], indirect=True)
def test_a_full_disk_is_one_sentence_and_nothing_stays(
    backup: Backup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether that is known before or comes in the middle."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with small_disk(scratch, 64 << 10):
        with pytest.raises(StorageError, match="MB are free: name a folder with more room by `--scratch`"):
            check(backup.path, scratch)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
        with pytest.raises(StorageError, match="No space left"):
            check(backup.path, scratch)
        assert left_in(scratch) == []
    with pytest.raises(StorageError, match="name another folder by `--scratch`"):
        check(backup.path, tmp_path / "nowhere")


HANGING_CHECK = """
import sys, time
from coordinator.backup import restore
from coordinator.cli.main import app
restore.seal = lambda folder: (print("copied", flush=True), time.sleep(3600))
app(["restore", sys.argv[1], "--check"])
"""


@pytest.mark.parametrize("store_kind", ["sqlite"], indirect=True)
def test_a_check_that_is_told_to_stop_leaves_nothing(backup: Backup) -> None:
    """As `docker stop` and systemd do: the run's keys had been copied."""
    command = [sys.executable, "-c", HANGING_CHECK, str(backup.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "copied\n"
            assert len(left_in(backup.path.parent)) == 2
            process.terminate()
            assert process.wait(PATIENCE_S) == 143
        finally:
            process.kill()
    assert left_in(backup.path.parent) == ["monday"]


@pytest.mark.parametrize("given", [(), ("again", "--check"), ("--check", "--settings", "settings.yaml")])
def test_a_restore_has_a_directory_or_is_a_check(tmp_path: Path, given: tuple[str, ...]) -> None:
    """Neither, or both, is a mistake."""
    with pytest.raises(ConfigError, match="or give `--check`"):
        call("restore", tmp_path / "backup", *given)


@pytest.mark.parametrize(("command", "option"), [("backup", "--verify"), ("restore", "--check")])
def test_a_place_for_a_check_without_a_check_is_refused(tmp_path: Path, command: str, option: str) -> None:
    """Nothing is made: the operator meant a check, or the place of something else."""
    with pytest.raises(ConfigError, match=f"`--scratch` belongs to `{option}`"):
        call(command, tmp_path / "from", tmp_path / "to", "--scratch", tmp_path)
    assert left_in(tmp_path) == []
