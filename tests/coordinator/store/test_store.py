"""The database: its tables, and several writers side by side."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from auth.errors import ConfigError, StorageError
from coordinator.store import engine as module
from coordinator.store.engine import Database, migrate, open_engine, patience
from coordinator.store.models import Base, Member, Revocation, Step
from tests.support.postgres import PASSWORD, new_database, shared_server
from tests.support.stores import Kind, database_address
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("forked")
WRITERS, WRITES = 2, 30


@pytest.fixture
def empty(tmp_path: Path, store_kind: Kind) -> Iterator[str]:
    """The address of a database without tables."""
    if store_kind == "sqlite":
        yield f"sqlite:///{tmp_path}/manyhands.db"
        return
    with new_database("template1") as address:
        yield address


@pytest.fixture
def address(tmp_path: Path, store_kind: Kind) -> Iterator[str]:
    with database_address(tmp_path, store_kind) as address:
        yield address


@pytest.fixture
def engine(address: str) -> Iterator[Engine]:
    engine = open_engine(address, create=True)
    migrate(engine)
    yield engine
    engine.dispose()


def add_step(session: Session, step: int, samples: int = 0) -> None:
    session.add(
        Step(
            step=step,
            era=0,
            samples=samples,
            loss_sum=0.0,
            loss_samples=0,
            devices=1,
            target_batch_size=64,
            completed_at=0.0,
        )
    )


def test_migrations_make_the_models_tables(engine: Engine) -> None:
    """Nobody has changed a model without a migration."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrating_twice_changes_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start migrates; where nothing is new the data stay, and no migration is even loaded."""
    with Database(engine).begin() as session:
        add_step(session, 1)
    monkeypatch.setattr(module, "upgrade", None)
    migrate(engine)
    with Database(engine)() as session:
        assert session.scalars(select(Step.step)).all() == [1]


def test_processes_that_migrate_at_once_wait_for_each_other(empty: str) -> None:
    """Service and keeper may both find an empty database."""
    engines = [open_engine(empty, create=True) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, engines))
    assert "members" in inspect(engines[0]).get_table_names()
    for engine in engines:
        engine.dispose()


def test_processes_that_open_a_new_file_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """SQLite refuses a second switch to WAL without waiting: about one of twenty such openings failed."""
    for attempt in range(100):
        engines = [open_engine(f"sqlite:///{tmp_path}/{attempt}.db", create=True) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda engine: engine.connect().close(), engines))
        for engine in engines:
            engine.dispose()


def test_another_connection_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """While this process has the file open, another one that closes it last must not delete its WAL file."""
    engine = open_engine(f"sqlite:///{tmp_path}/manyhands.db", create=True)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE words (word TEXT)"))
        with engine.connect():
            pass
    read = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM words'); c.close()"
    subprocess.run([sys.executable, "-c", read, tmp_path / "manyhands.db"], check=True)
    assert (tmp_path / "manyhands.db-wal").exists()
    engine.dispose()


def test_database_of_a_newer_version_is_refused(engine: Engine) -> None:
    """An old program must not write into tables it does not know."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageError, match="newer version"):
        migrate(engine)


@pytest.mark.parametrize("url", ["", "no address", "sqlit:///x", "oracle+nothing://secret@host/db"])
def test_bad_address_is_one_sentence_without_its_password(url: str) -> None:
    """A database address that cannot be used names the setting and never repeats the value."""
    with pytest.raises(ConfigError, match="database_url") as raised:
        open_engine(url)
    assert "secret" not in str(raised.value)


def test_unreachable_file_is_a_storage_error(tmp_path: Path) -> None:
    """A database in a directory that does not exist is one clear error."""
    with pytest.raises(StorageError, match="cannot be opened"):
        migrate(open_engine(f"sqlite:///{tmp_path}/missing/manyhands.db", create=True))


def test_refused_password_is_a_storage_error_without_it() -> None:
    """What the server says is passed on in one line, and what was tried is not."""
    wrong = make_url(shared_server().url()).set(password="wrong-secret")
    with pytest.raises(StorageError, match="password authentication failed") as raised:
        migrate(open_engine(wrong.render_as_string(hide_password=False)))
    assert not any(hidden in str(raised.value) for hidden in ("wrong-secret", PASSWORD, "\n"))


def test_an_address_may_have_its_own_patience() -> None:
    """What it says counts; the rest is as for all."""
    assert "connect_timeout" in patience(make_url("postgresql://host/db"))
    own = patience(make_url("postgresql://host/db?connect_timeout=99"))
    assert "connect_timeout" not in own
    assert "keepalives_idle" in own


def test_foreign_keys_hold(engine: Engine) -> None:
    """SQLite checks foreign keys only when told to."""
    with pytest.raises(IntegrityError), Database(engine).begin() as session:
        session.add(Revocation(id=1, device_id="none", peer_id="p", at=0.0, reason=""))


def test_failed_transaction_leaves_nothing(engine: Engine) -> None:
    """An exception inside `begin` undoes everything in it."""
    database = Database(engine)

    def write_and_fail() -> None:
        with database.begin() as session:
            add_step(session, 1)
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    with database() as session:
        assert session.scalar(select(Step.step)) is None


def test_conflict_with_another_writer_is_tried_again(engine: Engine) -> None:
    """If somebody else inserted the same row first, the action runs again and sees it."""
    database = Database(engine)
    attempts: list[bool] = []

    def add_once(session: Session) -> str:
        attempts.append(True)
        if len(attempts) == 1:  # as if another process had committed between our look and our insert
            raise IntegrityError("INSERT", {}, Exception())
        return "done"

    assert database.transact(add_once) == "done"
    assert len(attempts) == 2


def test_lasting_conflict_is_raised(engine: Engine) -> None:
    """A conflict that does not go away is an error, not an endless loop."""

    def insert_twice(session: Session) -> None:
        session.add_all([Member(name="Ada", created_at=0.0), Member(name="Ada", created_at=0.0)])
        session.flush()

    with pytest.raises(IntegrityError):
        Database(engine).transact(insert_twice)


def test_deadlock_is_tried_again(engine: Engine) -> None:
    """If two transactions wait for each other, one goes first and the other runs anew."""
    database = Database(engine)
    with database.begin() as session:
        add_step(session, 1)
        add_step(session, 2)
    both_began = Barrier(2)

    def add_one_to(first: int, second: int) -> None:
        met: list[bool] = []

        def add(session: Session) -> None:
            session.get_one(Step, first, with_for_update=True).samples += 1
            session.flush()
            if not met and engine.dialect.name == "postgresql":  # on SQLite the second cannot even begin
                met.append(True)
                both_began.wait(PATIENCE_S)
            session.get_one(Step, second, with_for_update=True).samples += 1

        database.transact(add)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add_one_to, (1, 2), (2, 1)))
    with database() as session:
        assert session.scalars(select(Step.samples)).all() == [2, 2]


def test_other_failures_are_raised_at_once(engine: Engine) -> None:
    """A database that fails is not asked again and again."""
    attempts: list[bool] = []

    def fail(_: Session) -> None:
        attempts.append(True)
        raise OperationalError("SELECT", {}, Exception("gone"))

    with pytest.raises(OperationalError):
        Database(engine).transact(fail)
    assert len(attempts) == 1


def count_up(url: str) -> None:
    engine = open_engine(url)
    for _ in range(WRITES):
        with Database(engine).begin() as session:
            row = session.get_one(Step, 1, with_for_update=True)
            row.samples += 1
    engine.dispose()


def test_processes_do_not_lose_each_others_writes(engine: Engine, address: str) -> None:
    """Read-then-write transactions of several processes run one after the other, without an error."""
    with Database(engine).begin() as session:
        add_step(session, 1)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(WRITERS) as pool:
        pool.map(count_up, [address] * WRITERS)
    with Database(engine)() as session:
        assert session.get_one(Step, 1).samples == WRITERS * WRITES


def test_reader_is_not_blocked_by_a_writer(engine: Engine) -> None:
    """While somebody writes, others read the state before."""
    database = Database(engine)
    with database.begin() as writer:
        add_step(writer, 1)
        writer.flush()
        with database() as reader:
            assert reader.scalar(select(Step.step)) is None
