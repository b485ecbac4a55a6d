"""Only one keeper: the lock, taking over, and noticing that it is lost."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from auth.errors import ConfigError, WorkerError
from coordinator.keeper.lock import KeeperLock, require_its_checkpoints, require_its_identity
from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.store.engine import Database, open_engine
from tests.support.postgres import new_database, new_server
from tests.support.stores import empty_store
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with new_database() as address:
        yield address


@pytest.fixture
def engine(address: str) -> Iterator[Engine]:
    engine = open_engine(address)
    yield engine
    engine.dispose()


def test_only_one_has_it(engine: Engine) -> None:
    """Whoever comes second gets it when the first lets go, and not before."""
    first, second = KeeperLock(engine), KeeperLock(engine)
    assert first.try_take()
    assert not second.try_take()
    first.check()
    first.release()
    wait_until("the second keeper has the lock", second.try_take)  # the server closes the connection in its own time
    second.release()


def test_who_needs_not_wait_is_told_so(engine: Engine) -> None:
    """The first keeper takes nothing over."""
    lock = KeeperLock(engine)
    assert not lock.wait(lambda: False, lambda _: pytest.fail("there is nothing to wait for"))
    lock.release()


def test_who_waits_takes_over(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """It says once that it waits, however long that is."""
    first, second = KeeperLock(engine), KeeperLock(engine)
    assert first.try_take()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            first.release()

    assert second.wait(lambda: False, sleep)
    assert len(waits) >= 3
    assert caplog.text.count("another keeper serves this run") == caplog.text.count("keeper now") == 1
    second.check()
    second.release()


def test_who_is_told_to_stop_waits_no_longer(engine: Engine) -> None:
    """And does not have the lock."""
    first, second = KeeperLock(engine), KeeperLock(engine)
    assert first.try_take()
    answers = iter([False, True])
    second.wait(lambda: next(answers), lambda _: None)
    first.release()
    wait_until("the first keeper has the lock", first.try_take)
    first.release()


def test_a_lock_that_may_be_lost_ends_the_keeper(engine: Engine) -> None:
    """When the server has cut its connection, another may be keeper: this one must stop, and may try again."""
    lock = KeeperLock(engine)
    assert lock.try_take()
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"))
    with pytest.raises(WorkerError, match="only keeper"):
        lock.check()
    wait_until("the keeper has the lock", lock.try_take)
    lock.release()


def _hold(address: str, held: Event) -> None:
    lock = KeeperLock(open_engine(address))
    assert lock.try_take()
    held.set()
    multiprocessing.Event().wait()


@pytest.mark.usefixtures("forked")
def test_a_killed_keepers_lock_is_free(address: str, engine: Engine) -> None:
    """It goes with the process, without a time to wait out."""
    spawn = multiprocessing.get_context("spawn")
    held = spawn.Event()
    process = spawn.Process(target=_hold, args=(address, held))
    process.start()
    lock = KeeperLock(engine)
    try:
        assert held.wait(PATIENCE_S)
        assert not lock.try_take()
    finally:
        process.kill()
        process.join()
    wait_until("the keeper has the lock", lock.try_take)
    lock.release()


def test_a_database_that_does_not_answer_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """A keeper that is started first waits for the server instead of failing, and says so about once a minute."""
    with new_server() as server:
        engine = open_engine(server.url())
        server.stop()
        lock = KeeperLock(engine)
        with pytest.raises(OperationalError):
            lock.try_take()
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if sum(waits) > 120:
                server.start()

        assert lock.wait(lambda: False, sleep)
        assert caplog.text.count("the database does not answer") == 3
        lock.release()
        engine.dispose()


def test_on_sqlite_there_is_nothing_to_lock(tmp_path: Path) -> None:
    """One machine has one port for the swarm."""
    with empty_store(tmp_path) as database:
        lock = KeeperLock(database.engine)
        assert lock.try_take()
        lock.check()
        lock.release()


def test_who_takes_over_must_have_the_checkpoints(tmp_path: Path) -> None:
    """On another disk the run would begin anew; where nothing was written yet it does not matter."""
    with empty_store(tmp_path) as database:
        require_its_checkpoints(database, tmp_path)
        _record(database, 1)
        _record(database, 2)
        with pytest.raises(ConfigError, match=r"step-00000002.*--service-only"):
            require_its_checkpoints(database, tmp_path)
        (tmp_path / "step-00000001").mkdir()
        require_its_checkpoints(database, tmp_path)


def test_who_takes_over_must_be_known_to_the_volunteers(tmp_path: Path) -> None:
    """They look for the keeper that they knew, by its identity; before there was one, any will do."""
    with empty_store(tmp_path) as database:
        require_its_identity(database, "QmOther")
        write_swarm_status(
            database,
            step=1,
            samples_accumulated=0,
            target_batch_size=64,
            peers=1,
            samples_per_second=1.0,
            eta_s=None,
            addresses=["/ip4/127.0.0.1/tcp/1/p2p/QmKeeper"],
            now=0.0,
        )
        require_its_identity(database, "QmKeeper")
        with pytest.raises(ConfigError, match="copy the folder `keeper`"):
            require_its_identity(database, "QmOther")


def _record(database: Database, step: int) -> None:
    record_checkpoint(database, step=step, size_bytes=1, manifest_sha256="0" * 64, now=0.0)
