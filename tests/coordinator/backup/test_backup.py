"""Backing up and restoring: all of a run or nothing, from either kind of database to either."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from auth.errors import ConfigError, ManyhandsError, ShrunkenRunError, StorageError
from coordinator.backup import restore as restoring
from coordinator.backup.backup import DATABASE_FILES, back_up
from coordinator.backup.database import contents, copy_rows
from coordinator.backup.manifest import Backup
from coordinator.backup.restore import restore
from coordinator.backup.shrinkage import LAST_BACKUP
from coordinator.checkpoints.manifest import MANIFEST, FileEntry, Manifest, file_entry
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.recorded_checkpoints import checkpoints, record_checkpoint
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import migrate, open_engine
from coordinator.store.models import Era, Member, Step
from peer.config.run import Run, RunConfig
from tests.support.operator_commands import call
from tests.support.postgres import new_database
from tests.support.receipts import key_of, pseudonym_of
from tests.support.stores import Kind, database_address, put_tables
from tests.support.waiting import PATIENCE_S

CONFIG = RunConfig(run=Run(name="demo"))
NOW = 1_800_000_000.0


@contextmanager
def another(kind: Kind, directory: Path) -> Iterator[Path | None]:
    """A settings.yaml for an empty database of this kind; none for SQLite, which is in the run's directory."""
    with database_address(directory, kind) as address:
        path = directory / "other-settings.yaml"
        path.write_text(Settings(database_url=None if kind == "sqlite" else address, web_port=9090).to_yaml())
        yield path


@pytest.fixture
def run(tmp_path: Path, store_kind: Kind) -> Iterator[RunDirectory]:
    """A run with a member, a device and two checkpoints."""
    with database_address(tmp_path, store_kind) as address:
        settings = Settings(database_url=None if store_kind == "sqlite" else address)
        directory = RunDirectory.create(tmp_path / "run", CONFIG, settings, prepare=put_tables)
        (directory.tokenizer_dir / "tokenizer.json").write_text("{}")
        with open_run(directory.path) as opened:
            join(opened, "Ada")
            for step in (5, 10):
                add_checkpoint(opened, step)
        yield directory


def join(run: OpenRun, name: str) -> str:
    """Bring a device of a new member in; returns its token."""
    pseudonym = pseudonym_of(name, run.directory.config.run.name)
    return run.membership.join(key_of(name).public_key, run.membership.invite(name)[0], receipt_key=pseudonym).token_jwt


def add_checkpoint(run: OpenRun, step: int) -> Path:
    """Write and record a small one."""
    folder = run.directory.checkpoint_dir(step)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights" * step)
    files: dict[str, FileEntry] = {"model.safetensors": file_entry(folder / "model.safetensors")}
    manifest = Manifest(format_version=1, run="demo", step=step, era=0, created_at=NOW, probe_loss=None, files=files)
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    sha256 = file_entry(folder / MANIFEST).sha256
    record_checkpoint(run.database, step=step, size_bytes=1, manifest_sha256=sha256, now=NOW)
    return folder


@pytest.fixture
def backup(run: RunDirectory, tmp_path: Path) -> Backup:
    return back_up(run, tmp_path / "backup", NOW)


@pytest.mark.parametrize("target_kind", ["sqlite", "postgresql"])
def test_a_restored_run_goes_on_where_it_was(run: RunDirectory, tmp_path: Path, target_kind: Kind) -> None:
    """Members, tokens, keys, checkpoints and numbers: on the same kind of database as before or on the other."""
    with open_run(run.path) as opened:
        token = join(opened, "Bob")
    made = back_up(run, tmp_path / "backup", NOW)
    (tmp_path / "b").mkdir()
    with another(target_kind, tmp_path / "b") as settings:
        restored = restore(made.path, tmp_path / "again", settings)
        assert restored.join_link == run.join_link
        assert restored.settings.web_port == 9090
        assert (restored.path / "manyhands.db").exists() == (target_kind == "sqlite")
        with open_run(restored.path) as opened:
            assert [row.name for row in opened.membership.members()] == ["Ada", "Bob"]
            assert opened.membership.check(token).member == "Bob"
            join(opened, "Eve")
            rows = checkpoints(opened.database)
        assert [row.step for row in rows] == [10, 5]
        assert all((restored.checkpoint_dir(row.step) / MANIFEST).is_file() for row in rows)


def test_nobody_else_can_read_a_backup_or_what_comes_of_it(backup: Backup, tmp_path: Path) -> None:
    """It holds the authority's key: each file 0600, each folder 0700."""
    (tmp_path / "settings.yaml").write_text("")
    restored = restore(backup.path, tmp_path / "again", tmp_path / "settings.yaml")
    for top in (backup.path, restored.path):
        found = [top, *top.rglob("*")]
        assert any(path.name == "authority.key" for path in found)
        for path in found:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_backup_is_of_one_moment_while_others_write(run: RunDirectory, tmp_path: Path) -> None:
    """Each invitation is two rows, in one transaction: a backup has both or none of it."""
    stop, invited = threading.Event(), itertools.count()
    begun, gone_on = threading.Event(), threading.Event()

    def keep_inviting() -> None:
        with open_run(run.path) as opened:
            while not stop.is_set():
                opened.membership.invite(f"member {next(invited)}")
                (gone_on if begun.is_set() else begun).set()

    writer = threading.Thread(target=keep_inviting)
    writer.start()
    try:
        assert begun.wait(PATIENCE_S)
        sizes = [back_up(run, tmp_path / f"backup-{number}", NOW).manifest.tables for number in range(4)]
        gone_on.clear()
        assert gone_on.wait(PATIENCE_S)
        sizes.append(back_up(run, tmp_path / "backup-4", NOW).manifest.tables)
    finally:
        stop.set()
        writer.join()
    assert all(tables["members"] == tables["invites"] for tables in sizes)
    assert sizes[0]["members"] < sizes[-1]["members"]


def test_what_is_unfinished_or_of_the_database_is_left_out(run: RunDirectory, tmp_path: Path) -> None:
    """Files that are being written, checkpoints that are being removed; they are neither copied nor recorded."""
    (run.keys_dir / ".authority.key.x1").write_text("half")
    (run.checkpoints_dir / "step-00000005" / "model.safetensors").unlink()
    made = back_up(run, tmp_path / "backup", NOW)
    assert made.checkpoints == ["step-00000010"]
    names = set(made.manifest.files)
    assert {"keys/authority.key", "keys/tls.key", "run.yaml", "settings.yaml", "tokenizer/tokenizer.json"} <= names
    assert not any(Path(name).name.startswith(".") or name in DATABASE_FILES for name in names)


def test_what_links_lead_to_is_in_it(run: RunDirectory, tmp_path: Path) -> None:
    """An operator may have put the checkpoints on another disk, and a note beside them."""
    run.checkpoints_dir.rename(tmp_path / "large-disk")
    run.checkpoints_dir.symlink_to(tmp_path / "large-disk")
    (run.checkpoints_dir / "step-by-step.txt").write_text("a note")
    made = back_up(run, tmp_path / "backup", NOW)
    assert made.checkpoints == ["step-00000005", "step-00000010"]
    assert "checkpoints/step-by-step.txt" in made.manifest.files


def test_a_backup_without_checkpoints_restores_to_none(run: RunDirectory, tmp_path: Path) -> None:
    """What is not there is not recorded either."""
    made = back_up(run, tmp_path / "backup", NOW, checkpoints=False)
    assert made.checkpoints == []
    (tmp_path / "settings.yaml").write_text("")
    restored = restore(made.path, tmp_path / "again", tmp_path / "settings.yaml")
    assert list(restored.checkpoints_dir.iterdir()) == []
    with open_run(restored.path) as opened:
        assert checkpoints(opened.database) == []


def test_an_older_version_s_backup_restores_after_a_migration_that_drops_rows(
    backup: Backup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are compared with the backup's as they were copied, not as this version keeps them."""

    def migrate_and_drop(engine: Engine) -> None:
        migrate(engine)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM invites"))

    monkeypatch.setattr(restoring, "migrate", migrate_and_drop)
    (tmp_path / "settings.yaml").write_text("")
    with open_run(restore(backup.path, tmp_path / "again", tmp_path / "settings.yaml").path) as opened:
        assert [row.name for row in opened.membership.members()] == ["Ada"]


def test_nothing_is_overwritten(run: RunDirectory, backup: Backup, tmp_path: Path) -> None:
    """Neither an earlier backup, nor a run's directory, nor a run's database; nor does a run hold its own backup."""
    before = sorted(run.path.rglob("*"))
    with pytest.raises(ConfigError, match="not empty"):
        back_up(run, backup.path, NOW)
    with pytest.raises(ConfigError, match="run's own directory"):
        back_up(run, run.path / "backups" / "monday", NOW)
    with pytest.raises(ConfigError, match="never overwritten"):
        restore(backup.path, run.path)
    assert sorted(run.path.rglob("*")) == before


def test_a_database_that_holds_another_run_is_refused(backup: Backup, tmp_path: Path) -> None:
    """And is left as it is; the directory is not made."""
    settings = tmp_path / "settings.yaml"
    with new_database() as address:
        settings.write_text(Settings(database_url=address).to_yaml())
        other = RunDirectory.create(tmp_path / "other", CONFIG, Settings(database_url=address))
        with open_run(other.path) as opened:
            opened.membership.invite("Somebody")
        with pytest.raises(ConfigError, match="holds a run already"):
            restore(backup.path, tmp_path / "again", settings)
        with open_run(other.path) as opened:
            assert [row.name for row in opened.membership.members()] == ["Somebody"]
    assert not (tmp_path / "again").exists()


def test_a_restore_that_was_killed_can_be_run_again(
    backup: Backup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when it has filled the database, it leaves that empty, and no directory."""
    settings = tmp_path / "settings.yaml"

    def die_after_copying(*arguments: Connection) -> None:
        copy_rows(*arguments)
        raise KeyboardInterrupt

    with new_database("template1") as address:
        settings.write_text(Settings(database_url=address).to_yaml())
        with monkeypatch.context() as patch:
            patch.setattr(restoring, "copy_rows", die_after_copying)
            with pytest.raises(KeyboardInterrupt):
                restore(backup.path, tmp_path / "again", settings)
        assert not (tmp_path / "again").exists()
        restored = restore(backup.path, tmp_path / "again", settings)
        with open_run(restored.path) as opened:
            assert [row.name for row in opened.membership.members()] == ["Ada"]


def test_a_restore_that_failed_at_its_end_can_be_run_again(
    backup: Backup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is full already, and is taken for what it is."""
    settings, again = tmp_path / "settings.yaml", tmp_path / "again"

    def put_something_there(*arguments: Connection) -> None:
        copy_rows(*arguments)
        (again / "something").mkdir(parents=True)

    with new_database("template1") as address:
        settings.write_text(Settings(database_url=address).to_yaml())
        with monkeypatch.context() as patch:
            patch.setattr(restoring, "copy_rows", put_something_there)
            with pytest.raises(StorageError, match="Cannot make the directory"):
                restore(backup.path, again, settings)
        (again / "something").rmdir()
        with open_run(restore(backup.path, again, settings).path) as opened:
            assert [row.name for row in opened.membership.members()] == ["Ada"]


def test_a_failed_backup_leaves_nothing(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even aside: a full disk is one sentence."""

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coordinator.backup.backup.copy_file", no_space)
    (tmp_path / "backups").mkdir()
    with pytest.raises(StorageError, match="No space left"):
        back_up(run, tmp_path / "backups" / "monday", NOW)
    assert list((tmp_path / "backups").iterdir()) == []


def put_step(run: OpenRun, step: int) -> None:
    """Have the run's keeper tell of a step."""
    with run.database.begin() as session:
        session.add(
            Step(
                step=step,
                era=0,
                completed_at=NOW,
                samples=1,
                loss_sum=1.0,
                loss_samples=1,
                devices=1,
                target_batch_size=1,
            )
        )


def test_a_run_that_holds_far_less_than_its_last_backup_is_not_backed_up(run: RunDirectory, tmp_path: Path) -> None:
    """An emptied table, or checkpoints whose disk is not there: one sentence, nothing made, until it is confirmed."""
    with open_run(run.path) as opened:
        put_step(opened, 10)
        join(opened, "Bob")
        join(opened, "Eve")
    back_up(run, tmp_path / "monday", NOW)
    with open_run(run.path) as opened, opened.database.begin() as session:
        for table in ("sessions", "invites", "devices"):
            session.execute(text(f"DELETE FROM {table}"))  # noqa: S608
        session.execute(text("DELETE FROM members WHERE name != 'Ada'"))
    run.checkpoints_dir.rename(tmp_path / "unmounted")
    run.checkpoints_dir.mkdir()
    with pytest.raises(ShrunkenRunError) as caught:
        back_up(run, tmp_path / "elsewhere" / "tuesday", NOW + 3600)
    assert caught.value.exit_code == 33
    assert "monday of 1 h ago (members 1 instead of 3, devices 0 instead of 3, no checkpoints)" in str(caught.value)
    assert not (tmp_path / "elsewhere" / "tuesday").exists()
    made = back_up(run, tmp_path / "elsewhere" / "tuesday", NOW + 3600, confirmed=True)
    assert back_up(run, tmp_path / "elsewhere" / "wednesday", NOW + 7200).manifest.tables == made.manifest.tables


def test_a_database_that_knows_less_than_the_checkpoints_is_not_backed_up(run: RunDirectory, tmp_path: Path) -> None:
    """Also at the very first backup; checkpoints of steps that were undone do not count, damaged ones neither."""
    with open_run(run.path) as opened, opened.database.begin() as session:
        session.execute(text("DELETE FROM checkpoints"))
    with pytest.raises(ShrunkenRunError, match="knows 0 steps, and the newest checkpoint beside it is of step 10"):
        back_up(run, tmp_path / "monday", NOW)
    with open_run(run.path) as opened, opened.database.begin() as session:
        session.add(Era(era=1, after_step=0, began_at=NOW))
    assert back_up(run, tmp_path / "monday", NOW).manifest.figures["checkpoints on disk"] == 2


def test_steps_that_were_undone_are_not_missed(run: RunDirectory, tmp_path: Path) -> None:
    """A return to an earlier checkpoint takes steps and samples away, and no member."""
    with open_run(run.path) as opened:
        put_step(opened, 1000)
    back_up(run, tmp_path / "monday", NOW)
    with open_run(run.path) as opened:
        opened.ledger.roll_back(10)
    back_up(run, tmp_path / "tuesday", NOW)
    with open_run(run.path) as opened, opened.database.begin() as session:
        session.execute(text("DELETE FROM steps"))
        session.execute(text("DELETE FROM checkpoints"))
    with pytest.raises(ShrunkenRunError):
        back_up(run, tmp_path / "wednesday", NOW)


def test_a_run_that_lost_its_directory_too_is_known_by_the_backups_beside(run: RunDirectory, tmp_path: Path) -> None:
    """A new run of the same name, made in the place of the old, does not displace its backups."""
    back_up(run, tmp_path / "backups" / "monday", NOW)
    new = RunDirectory.create(tmp_path / "new", CONFIG, Settings(), prepare=put_tables)
    with pytest.raises(ShrunkenRunError, match="members 0 instead of 1"):
        back_up(new, tmp_path / "backups" / "tuesday", NOW)
    back_up(new, tmp_path / "first", NOW)


def test_a_run_that_takes_no_note_of_its_last_backup_is_backed_up(run: RunDirectory, tmp_path: Path) -> None:
    """The note is for the next backup only."""
    (run.path / LAST_BACKUP / "in the way").mkdir(parents=True)
    assert back_up(run, tmp_path / "backup", NOW).checkpoints


def flip_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def escape(path: Path) -> None:
    """Name a file outside the backup."""
    manifest = json.loads(path.read_text())
    manifest["files"]["../secret"] = {"size_bytes": 0, "sha256": "0" * 64}
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("run/keys/authority.key", flip_last_byte),
        ("run/checkpoints/step-00000010/model.safetensors", flip_last_byte),
        ("run/run.yaml", Path.unlink),
        ("database.db", flip_last_byte),
        ("backup.json", Path.unlink),
        ("backup.json", flip_last_byte),
        ("backup.json", escape),
    ],
)
def test_a_damaged_backup_is_refused(tmp_path: Path, whole: Path, name: str, damage: Callable[[Path], None]) -> None:
    """Whatever byte is missing or wrong, nothing is made of it."""
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    damage(copy / name)
    with pytest.raises((ConfigError, StorageError), match="backup"):
        restore(copy, tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a run on SQLite."""
    directory = tmp_path_factory.mktemp("whole")
    run = RunDirectory.create(directory / "run", CONFIG, Settings(), prepare=put_tables)
    with open_run(run.path) as opened:
        add_checkpoint(opened, 10)
    return back_up(run, directory / "backup", NOW).path


def test_a_table_that_comes_back_with_other_rows_is_noticed(whole: Path, tmp_path: Path) -> None:
    """Rows are counted when all is restored, not only bytes compared before."""
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    manifest = json.loads((copy / "backup.json").read_text())
    manifest["tables"]["checkpoints"] += 1
    (copy / "backup.json").write_text(json.dumps(manifest))
    with pytest.raises(StorageError, match="`checkpoints` comes back with 1 rows instead of 2"):
        restore(copy, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_text_that_the_other_database_cannot_hold_is_refused_whole(tmp_path: Path) -> None:
    """SQLite takes a NUL in a text; PostgreSQL says no, and no row stays there."""
    run = RunDirectory.create(tmp_path / "run", CONFIG, Settings(), prepare=put_tables)
    with open_run(run.path) as opened, opened.database.begin() as session:
        session.add(Member(name="a\0b", created_at=0.0, revoked_reason=""))
    made = back_up(run, tmp_path / "backup", NOW)
    with new_database() as address:
        (tmp_path / "settings.yaml").write_text(Settings(database_url=address).to_yaml())
        with pytest.raises(ManyhandsError, match="does not take the run"):
            restore(made.path, tmp_path / "again", tmp_path / "settings.yaml")
        engine = open_engine(address)
        with engine.connect() as connection:
            assert all(rows == 0 for rows, _ in contents(connection).values())
        engine.dispose()


def test_the_commands_say_what_they_did(run: RunDirectory, tmp_path: Path) -> None:
    """In figures for scripts; both acts are in the audit log of the run that they concern."""
    said = json.loads(call("backup", run.path, tmp_path / "backup", "--json").stdout)
    assert (said["run"], said["checkpoints"]) == ("demo", ["step-00000005", "step-00000010"])
    assert said["rows"] >= 5
    assert "keys" in call("backup", run.path, tmp_path / "small", "--no-checkpoints").stdout
    (tmp_path / "settings.yaml").write_text("")
    given = (tmp_path / "backup", tmp_path / "again", "--settings", tmp_path / "settings.yaml")
    restored = json.loads(call("restore", *given, "--json").stdout)
    assert (restored["join_link"], restored["backup_created_at"]) == (str(run.join_link), said["created_at"])
    [act] = json.loads(call("audit", tmp_path / "again", "--json").stdout)
    assert act["act"] == "restore"
    told = call("restore", tmp_path / "backup", tmp_path / "third", "--settings", tmp_path / "settings.yaml").stdout
    [sentence] = re.findall(r"Reports that came after the backup, made at (.*) UTC, are missing from the ledger", told)
    assert f"{tmp_path / 'backup'}, of {sentence} UTC" in str(act)
    acts = [row["act"] for row in json.loads(call("audit", run.path, "--json").stdout)]
    assert acts == ["backup", "backup"]
