"""A database belongs to one run, whatever keys that run gets in the course of time."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from auth.errors import ConfigError, DatabaseError, ManyhandsError, StorageError
from auth.keys import AuthorityKey, create_tls_certificate
from coordinator.cli.main import app
from coordinator.context.open_run import open_run
from coordinator.members.audit import audit_log
from coordinator.run import database_owner
from coordinator.run.database_owner import claim_database
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import migrate, open_engine
from peer.config.run import RunConfig
from tests.support.postgres import new_database
from tests.support.small_run import make_small_run
from tests.support.stores import Kind, database_address, empty_store

CONFIG = RunConfig.from_mapping({"run": {"name": "small"}})


def test_another_run_is_refused(small_run: RunDirectory, tmp_path: Path) -> None:
    """At its first command, before it has written anything; one sentence names both."""
    with open_run(small_run.path) as first:
        first.membership.invite("Ada")
    (tmp_path / "second").mkdir()
    second = make_small_run(tmp_path / "second")
    settings = second.settings.model_copy(update={"database_url": small_run.database_url})
    (second.path / "settings.yaml").write_text(settings.to_yaml())
    for command in (["members", str(second.path)], ["serve", str(second.path)]):
        error = CliRunner().invoke(app, command).exception
        assert isinstance(error, ConfigError)
        assert f"{second.path} belongs to another run, `small`" in str(error)
    with open_run(small_run.path) as first:
        assert [member.name for member in first.membership.members()] == ["Ada"]


def test_each_key_may_be_replaced(small_run: RunDirectory, tmp_path: Path, store_kind: Kind) -> None:
    """One after the other: the run is known by the one that stayed. With both at once it would be another run."""
    changed = RunDirectory(shutil.copytree(small_run.path, tmp_path / "changed"))
    with empty_store(tmp_path, store_kind) as database:
        claim_database(database, small_run)
        replace_certificate(changed)
        claim_database(database, changed)
        AuthorityKey.generate().save(changed.keys_dir / "authority.key")
        claim_database(database, RunDirectory(changed.path))
        with pytest.raises(ConfigError, match="another run"):
            claim_database(database, small_run)


def test_after_a_rotation_the_certificate_may_be_replaced(small_run: RunDirectory) -> None:
    """As after a stolen backup: the one right after the other, with no command between them."""
    assert CliRunner().invoke(app, ["rotate-key", str(small_run.path)]).exit_code == 0
    replace_certificate(small_run)
    assert CliRunner().invoke(app, ["members", str(small_run.path)]).exit_code == 0


def test_a_copy_without_keys_is_read(small_run: RunDirectory) -> None:
    """Somebody keeps what came of a run, and not its secrets."""
    shutil.rmtree(small_run.keys_dir)
    with open_run(small_run.path) as opened:
        assert opened.membership.members() == []


def test_of_two_runs_at_once_one_gets_it(tmp_path: Path, store_kind: Kind) -> None:
    """The other one is refused, at whatever moment it came."""
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        runs.append(make_small_run(tmp_path / name))
    with empty_store(tmp_path, store_kind) as database, ThreadPoolExecutor(2) as threads:
        claims = [threads.submit(claim_database, database, run) for run in runs]
        errors = [claim.exception() for claim in claims]
    assert {type(error) for error in errors} == {ConfigError, type(None)}, errors


def test_a_run_that_looked_before_another_claimed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not take over the row of the quicker one, which PostgreSQL shows it between two looks."""
    runs = []
    for name in ("slow", "quick"):
        (tmp_path / name).mkdir()
        runs.append(make_small_run(tmp_path / name))
    looks = []

    def look(session: Session) -> database_owner.Keys | None:
        found = owner_row(session)
        looks.append(found)
        if len(looks) == 2:  # the slow one's, in the transaction that claims
            claim_database(database, runs[1])
        return found

    owner_row = database_owner._owner
    monkeypatch.setattr(database_owner, "_owner", look)
    with empty_store(tmp_path, "postgresql") as database, pytest.raises(ConfigError, match="belongs to another run"):
        claim_database(database, runs[0])
    assert looks[:2] == [None, None]


def remove_database(run: RunDirectory) -> None:
    for path in run.path.glob("manyhands.db*"):
        path.unlink()


def empty_database(run: RunDirectory) -> None:
    remove_database(run)
    (run.path / "manyhands.db").touch()


def replace_database(run: RunDirectory) -> None:
    """By one with all tables and no row, beside a checkpoint."""
    remove_database(run)
    engine = open_engine(run.database_url, create=True)
    migrate(engine)
    engine.dispose()
    (run.checkpoints_dir / "step-00000005").mkdir()


def damage_database(run: RunDirectory) -> None:
    remove_database(run)
    (run.path / "manyhands.db").write_bytes(b"no database at all" * 100)


def truncate_database(run: RunDirectory) -> None:
    with sqlite3.connect(run.path / "manyhands.db") as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    os.truncate(run.path / "manyhands.db", 100_000)


COMMANDS = (["members"], ["invite", "ada"], ["serve"], ["backup", "TARGET"], ["rotate-key"])
SPOILERS = (remove_database, empty_database, replace_database, damage_database, truncate_database)


@pytest.mark.parametrize(
    ("command", "spoil"),
    [*((command, remove_database) for command in COMMANDS), *((["status"], spoil) for spoil in SPOILERS)],
)
def test_a_lost_database_is_not_replaced(
    small_run: RunDirectory, tmp_path: Path, spoil: Callable[[RunDirectory], None], command: list[str]
) -> None:
    """Missing, empty or damaged: each command says so in one sentence, names `restore`, and makes none."""
    spoil(small_run)
    files = {path.name: path.read_bytes() for path in small_run.path.glob("manyhands.db")}
    name, *rest = command
    result = CliRunner().invoke(
        app, [name, str(small_run.path), *(str(tmp_path / "target") if word == "TARGET" else word for word in rest)]
    )
    assert isinstance(result.exception, DatabaseError)
    assert "`manyhands coordinator restore`" in str(result.exception)
    assert "\n" not in str(result.exception)
    assert {path.name: path.read_bytes() for path in small_run.path.glob("manyhands.db")} == files
    assert not (tmp_path / "target").exists()


def test_an_empty_postgresql_database_is_no_runs(small_run: RunDirectory) -> None:
    """Settings that name a fresh one begin no second ledger; the sentence says how to begin anew."""
    with new_database("template1") as address:
        settings = small_run.settings.model_copy(update={"database_url": address})
        (small_run.path / "settings.yaml").write_text(settings.to_yaml())
        expected = r"`database_url` names is empty.*`manyhands coordinator restore`.*`manyhands coordinator init`"
        with pytest.raises(DatabaseError, match=expected), open_run(small_run.path):
            pass


def test_a_run_of_an_older_version_is_opened(small_run: RunDirectory) -> None:
    """Its `init` made all tables and left them to the first command; without a checkpoint nothing can be lost."""
    replace_database(small_run)
    (small_run.checkpoints_dir / "step-00000005").rmdir()
    with open_run(small_run.path) as opened:
        assert opened.membership.members() == []


def test_a_new_run_owns_its_database(tmp_path: Path, store_kind: Kind) -> None:
    """From its making on, so that no other takes it; of a run that fails while it is made no database is claimed."""
    with database_address(tmp_path, store_kind) as address:
        with pytest.raises(ManyhandsError, match="no such corpus"):
            RunDirectory.create(tmp_path / "run", CONFIG, Settings(database_url=address), prepare=fail)
        run = RunDirectory.create(tmp_path / "run", CONFIG, Settings(database_url=address))
        with pytest.raises(ConfigError, match="holds a run already"):
            RunDirectory.create(tmp_path / "other", CONFIG, Settings(database_url=address))
        assert not (tmp_path / "other").exists()
        with open_run(run.path) as opened:
            assert audit_log(opened.database, 10) == []


def fail(_run: RunDirectory) -> None:
    raise ManyhandsError("no such corpus")


def test_a_file_that_may_not_be_opened_is_no_lost_one(small_run: RunDirectory) -> None:
    """Its rights are to be mended, and nothing restored."""
    database = small_run.path / "manyhands.db"
    remove_database(small_run)
    database.mkdir()
    with pytest.raises(StorageError, match="unable to open database file") as caught, open_run(small_run.path):
        pass
    assert not isinstance(caught.value, DatabaseError)


def replace_certificate(run: RunDirectory) -> None:
    for path in (run.tls_key_path, run.tls_cert_path):
        path.unlink()
    create_tls_certificate(run.tls_key_path, run.tls_cert_path)
